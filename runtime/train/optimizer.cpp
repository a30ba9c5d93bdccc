#include "runtime/train/optimizer.h"

#include <algorithm>
#include <utility>

#include "runtime/core/error.h"

namespace ddptrain {

Optimizer::Optimizer(const OptimizerSettings& settings, float clip_norm, const ParameterArena& arena, Device& device,
                     Communicator& communicator, bool fused_sum)
    : settings_(settings),
      clip_norm_(clip_norm),
      arena_(arena),
      device_(device),
      ops_(device.get<OptimizerOps>()),
      communicator_(communicator) {
  const OptimizerRule& rule = rule_of(settings.kind);
  DDP_CHECK(!rule.whole_parameters || !arena.sharded(), "{} needs whole parameters", rule.name);
  if (clips()) clip_ = device_.allocate((arena.plan().buckets.size() + 1) * sizeof(float));
  const std::size_t last = arena.plan().buckets.size() - 1;
  const std::size_t inbox_bytes = ops_.inbox_bytes(settings.kind, arena.update_slice(last), communicator.size());
  why_not_fused_ = what_forbids_fusing(fused_sum, inbox_bytes);
  find_peers(why_not_fused_.empty() ? inbox_bytes : 0);
}

std::string Optimizer::what_forbids_fusing(bool wanted, std::size_t inbox_bytes) const {
  if (!wanted) return "the fused sum is off";
  if (clips()) return "clipping needs all sums before the first update";
  if (arena_.sharded()) return "optimizer state is sharded";
  if (inbox_bytes == 0) return "not for this optimizer, number of ranks or size of the last bucket";
  return {};
}

/// All ranks come to the same answer: those that fuse wait for each other.
void Optimizer::find_peers(std::size_t inbox_bytes) {
  PeerMemory memory = communicator_.allocate_for_peers(inbox_bytes);
  if (memory.of_rank.empty()) {
    if (why_not_fused_.empty()) why_not_fused_ = "GPUs do not reach each other's memory, or another rank cannot";
    return;
  }
  inbox_ = std::move(memory.mine);
  peers_.rank = communicator_.rank();
  peers_.size = communicator_.size();
  std::copy(memory.of_rank.begin(), memory.of_rank.end(), peers_.of_rank.begin());
}

Tensor Optimizer::squares() const {
  return clip_.view(DType::f32, {static_cast<std::int64_t>(arena_.plan().buckets.size())});
}

float* Optimizer::clip_scale() const { return static_cast<float*>(clip_.data()) + arena_.plan().buckets.size(); }

void Optimizer::begin_step(StepRef step, bool communicates) {
  step_ = step;
  gathers_ = communicates && arena_.sharded();
}

void Optimizer::bucket_reduced(std::size_t bucket, Stream stream) {
  if (clips()) {
    ops_.sum_of_squares(arena_.reduced_gradients(bucket), squares().as<float>() + bucket, stream);
    return;
  }
  update(bucket, stream);
  if (gathers_) gather(bucket, stream);
}

void Optimizer::sum_and_update(std::size_t bucket, Stream stream) {
  const Span span(device_.timeline(), Lane::communication, stream, fmt::format("bucket {} sum and update", bucket));
  ops_.sum_and_update(settings_, arena_.update_slice(bucket), peers_, step_, stream);
}

void Optimizer::finish_step() {
  if (clips()) clip_and_update();
  if (gathers_) communicator_.wait(last_gather_);
}

/// A bucket is gathered while the next one is updated.
void Optimizer::clip_and_update() {
  const Stream compute = device_.compute_stream();
  const Stream communication = device_.communication_stream();
  if (gathers_) communicator_.wait(communicator_.all_reduce_sum(squares(), compute));
  ops_.clip_scale(squares(), clip_norm_, clip_scale(), compute);
  for (std::size_t bucket = 0; bucket < arena_.plan().buckets.size(); ++bucket) {
    update(bucket, compute);
    if (!gathers_) continue;
    device_.wait_for(communication, compute);
    gather(bucket, communication);
  }
  if (gathers_) device_.wait_for(compute, communication);
}

void Optimizer::update(std::size_t bucket, Stream stream) {
  const Span span(device_.timeline(), Lane::compute, stream, fmt::format("bucket {} update", bucket));
  UpdateSlice slice = arena_.update_slice(bucket);
  if (clips()) slice.gradient_scale = clip_scale();
  ops_.update(settings_, slice, step_, stream);
}

void Optimizer::gather(std::size_t bucket, Stream stream) {
  last_gather_ = communicator_.all_gather(arena_.bucket_weights(bucket), stream);
}

}  // namespace ddptrain
