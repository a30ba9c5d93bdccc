#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "runtime/core/bf16.h"
#include "runtime/core/error.h"
#include "runtime/ops/cpu/cpu_ops.h"
#include "runtime/ops/cpu/optimizer.h"

namespace ddptrain {

namespace {

double as_double(double value) { return value; }
double as_double(Bf16 value) { return to_float(value); }

/// Rule<kind>::update of every kind.
template <std::size_t... kKinds>
constexpr auto updates_of(std::index_sequence<kKinds...>) {
  return std::array{&cpu::Rule<static_cast<OptimizerKind>(kKinds)>::update...};
}
constexpr auto kUpdates = updates_of(std::make_index_sequence<kOptimizerRules.size()>());

/// Rounds the master weights of a chunk to bf16.
void round_weights(const OptimizerSettings& settings, const UpdateSlice& slice, const UpdateChunk& chunk,
                   std::uint64_t step) {
  const float* master = static_cast<const float*>(slice.master) + chunk.begin;
  Bf16* weights = static_cast<Bf16*>(slice.weights) + chunk.begin;
  Philox random{};
  for (std::uint32_t i = 0; i < chunk.count; ++i) {
    if (!settings.stochastic_rounding) {
      weights[i] = to_bf16(master[i]);
      continue;
    }
    if (i % 4 == 0) random = rounding_bits(settings.rounding_seed, step, chunk.parameter, chunk.element + i);
    const auto bits = std::bit_cast<std::uint32_t>(master[i]);
    weights[i] = {static_cast<std::uint16_t>(stochastic_bf16(bits, random.word[i % 4]) >> 16)};
  }
}

class CpuOptimizer final : public OptimizerOps, CpuOps {
 public:
  using CpuOps::CpuOps;

  void advance(StepState* state, std::uint32_t steps, Stream) override { state->step += steps; }

  void update(const OptimizerSettings& settings, const UpdateSlice& slice, StepRef step, Stream) override {
    rule_for(settings.kind, slice);
    const bool same = slice.weights == slice.master;
    DDP_CHECK(same ? slice.weight_type == dtype() : slice.weight_type == DType::bf16 && dtype() == DType::f32,
              "update: weights of {} beside master weights of {}", name_of(slice.weight_type), name_of(dtype()));
    DDP_CHECK(slice.gradient_type == dtype() || slice.gradient_type == DType::bf16, "update: gradients of {}",
              name_of(slice.gradient_type));
    const cpu::Parallel parallel = [this](std::int64_t count, std::int64_t stride, const auto& work) {
      parallel_each(count, stride, [&](std::int64_t i, int) { work(i); });
    };
    kUpdates[static_cast<std::size_t>(settings.kind)](settings, slice, step.value(), dtype(), parallel);
    if (same || (slice.gradient_scale != nullptr && std::isnan(*slice.gradient_scale))) return;
    parallel_each(slice.chunk_count, 64,
                  [&](std::int64_t i, int) { round_weights(settings, slice, slice.chunks[i], step.value()); });
  }

  std::size_t inbox_bytes(OptimizerKind, const UpdateSlice&, int) const override { return 0; }

  void sum_and_update(const OptimizerSettings&, const UpdateSlice&, const PeerInboxes&, StepRef, Stream) override {
    fail("sum_and_update: not on CPUs");
  }

  void sum_of_squares(const Tensor& values, float* sum, Stream) override {
    DDP_CHECK(values.dtype == dtype() || values.dtype == DType::bf16, "sum_of_squares of {}", name_of(values.dtype));
    std::vector<double> partial(static_cast<std::size_t>(threads()), 0.0);
    const auto add = [&]<class T>(const T* all) {
      parallel(values.size(), [&](std::int64_t begin, std::int64_t end, int thread) {
        double total = 0.0;
        for (std::int64_t i = begin; i < end; ++i) {
          const double value = as_double(all[i]);
          total += value * value;
        }
        partial[static_cast<std::size_t>(thread)] = total;
      });
    };
    with_scalar([&](auto scalar) {
      if (values.dtype == DType::bf16) return add(values.as<const Bf16>());
      add(values.as<const decltype(scalar)>());
    });
    *sum = static_cast<float>(std::accumulate(partial.begin(), partial.end(), 0.0));
  }

  void clip_scale(const Tensor& squares, float max_norm, StepRef step, NonFinite* found, float* scale,
                  Stream) override {
    const auto* first = squares.as<const float>();
    const double sum = std::accumulate(first, first + squares.size(), 0.0);
    *scale = step_scale(sum, max_norm, step.value(), *found);
  }

  void add_unless_left_out(const NonFinite* found, MetricSums* mine, MetricSums* total, Stream) override {
    if (found->in_a_row == 0) {
      total->loss += mine->loss;
      total->correct += mine->correct;
      total->samples += mine->samples;
    }
    *mine = {};
  }
};

}  // namespace

std::unique_ptr<OptimizerOps> OptimizerOps::on_cpu(Device& device) { return std::make_unique<CpuOptimizer>(device); }

}  // namespace ddptrain
