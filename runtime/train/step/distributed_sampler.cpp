#include "runtime/train/step/distributed_sampler.h"

#include <limits>

#include <algorithm>

#include "runtime/core/error.h"
#include "runtime/core/text.h"

namespace ddptrain {

DistributedSampler::DistributedSampler(std::int64_t dataset_size, std::int64_t batch, std::int64_t grad_accum, int rank,
                                       int world_size, std::uint64_t seed)
    : dataset_size_(dataset_size), batch_(batch), rank_(rank), world_size_(world_size), seed_(seed) {
  DDP_CHECK(world_size > 0 && rank >= 0 && rank < world_size, "rank {} of {}", rank, world_size);
  DDP_CHECK(dataset_size > 0 && dataset_size <= std::numeric_limits<std::uint32_t>::max(), "{} samples", dataset_size);
  if (batch < 1) usage_error("a batch of {} samples per rank: give at least 1", batch);
  if (grad_accum < 1) usage_error("gradient accumulation over {} micro-steps: give at least 1", grad_accum);

  const std::int64_t cuts = grad_accum <= dataset_size / world_size ? grad_accum * world_size : dataset_size + 1;
  const std::int64_t largest = dataset_size / cuts;
  if (largest == 0) {
    usage_error("{} training samples are too few for {} with {} each: use fewer", dataset_size,
                counted(world_size, "rank"), counted(grad_accum, "micro-step"));
  }
  if (batch > largest) {
    usage_error(
        "a batch of {} per rank on {} with {} needs more than the {} training samples in one "
        "step: the largest batch that fits is {}",
        batch, counted(world_size, "rank"), counted(grad_accum, "micro-step"), dataset_size, largest);
  }
  samples_per_step_ = batch * cuts;
  steps_per_epoch_ = dataset_size / samples_per_step_;
}

SampleOrder DistributedSampler::order(std::int64_t micro_step, std::int64_t offset) const {
  SampleOrder order;
  order.seed = seed_;
  order.dataset_size = static_cast<std::uint32_t>(dataset_size_);
  order.steps_per_epoch = static_cast<std::uint32_t>(steps_per_epoch_);
  order.samples_per_step = static_cast<std::uint32_t>(samples_per_step_);
  order.first = static_cast<std::uint32_t>((micro_step * world_size_ + rank_ + offset) * batch_);
  return order;
}

EvaluationShard DistributedSampler::evaluation(std::int64_t size, int rank, int world_size) {
  const std::int64_t first = size * rank / world_size;
  return {first, size * (rank + 1) / world_size - first};
}

std::vector<Slice> evaluation_slices(const StepState* state, std::int64_t test_count, const EvaluationShard& share,
                                     std::int64_t batch) {
  std::vector<Slice> slices;
  for (std::int64_t done = 0; done < share.count; done += batch) {
    Slice& slice = slices.emplace_back();
    slice.step.state = state;
    slice.order.dataset_size = static_cast<std::uint32_t>(test_count);
    slice.order.shuffle = false;
    slice.order.first = static_cast<std::uint32_t>(share.first + done);
    slice.count = std::min(batch, share.count - done);
  }
  return slices;
}

}  // namespace ddptrain
