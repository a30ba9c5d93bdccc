#include "runtime/train/step/whole/trust_ratios.h"

#include "runtime/core/error.h"
#include "runtime/device/timeline.h"

namespace ddptrain {
namespace {

std::size_t square_bytes(const ParameterArena& arena) {
  return static_cast<std::size_t>(arena.square_count()) * sizeof(UpdateSquares);
}

std::size_t ratio_bytes(const ParameterArena& arena) { return arena.specs().size() * sizeof(float); }

}  // namespace

TrustRatios::TrustRatios(const ParameterArena& arena)
    : arena_(arena),
      device_(arena.device()),
      ops_(device_.get<OptimizerOps>()),
      squares_(device_.allocate(square_bytes(arena))),
      ratios_(device_.allocate(ratio_bytes(arena))) {
  DDP_CHECK(arena.whole_chunks(), "norms of parameters need whole chunks");
  for (const ParameterSpec& spec : arena.specs()) {
    DDP_CHECK(!spec.split && !spec.is_copy, "{}: ranks split layers, and the optimizer needs norms of whole parameters",
              spec.name);
  }
}

std::size_t TrustRatios::bytes(const ParameterArena& arena) { return square_bytes(arena) + ratio_bytes(arena); }

void TrustRatios::find(const OptimizerSettings& settings, const float* gradient_scale, StepRef step,
                       Communicator* ranks) {
  add_squares(settings, gradient_scale, step);
  if (ranks != nullptr) add_ranks(*ranks);
  const auto parameters = static_cast<std::int64_t>(arena_.specs().size());
  ops_.trust_ratios(squares(), arena_.first_square(), ratios_.view(DType::f32, {parameters}), device_.compute_stream());
}

/// This rank writes the sums of its own chunks, and leaves zeros for the chunks of other ranks.
void TrustRatios::add_squares(const OptimizerSettings& settings, const float* gradient_scale, StepRef step) {
  const Stream stream = device_.compute_stream();
  const Span span(device_.timeline(), Lane::compute, stream, "norms of parameters");
  device_.zero(squares_.data(), squares_.bytes(), stream);
  const std::size_t buckets = arena_.buckets_per_slice();
  for (std::size_t first = 0; first < arena_.plan().buckets.size(); first += buckets) {
    UpdateSlice slice = arena_.update_slice(first, buckets);
    slice.gradient_scale = gradient_scale;
    ops_.update_squares(settings, slice, arena_.first_square(), squares(), step, stream);
  }
}

void TrustRatios::add_ranks(Communicator& ranks) {
  const Span span(device_.timeline(), Lane::communication, device_.compute_stream(), "sums of norms");
  const auto floats = static_cast<std::int64_t>(squares_.bytes() / sizeof(float));
  ranks.wait(ranks.all_reduce_sum(squares_.view(DType::f32, {floats}), device_.compute_stream()));
}

}  // namespace ddptrain
