#pragma once

#include <cstdint>
#include <vector>

#include "runtime/core/step.h"

namespace ddptrain {

/// A contiguous range of a data set.
struct EvaluationShard {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Deals the training samples to ranks. A step takes the next samples_per_step() = batch * grad_accum * world_size
/// samples of the epoch's permutation. In micro-step m, rank r takes `batch` of them from index (m * world_size + r) *
/// batch on. So the set of samples in a step depends only on samples_per_step(), and not on how ranks and micro-steps
/// divide it. No sample comes twice in an epoch. The last dropped() samples of each permutation are not used.
class DistributedSampler {
 public:
  /// UsageError if a size is not positive, or if one step needs more samples than there are.
  DistributedSampler(std::int64_t dataset_size, std::int64_t batch, std::int64_t grad_accum, int rank, int world_size,
                     std::uint64_t seed);

  std::int64_t steps_per_epoch() const { return steps_per_epoch_; }
  std::int64_t samples_per_step() const { return samples_per_step_; }
  std::int64_t dropped() const { return dataset_size_ - steps_per_epoch_ * samples_per_step_; }

  /// The samples of rank `rank + offset` in micro-step `micro_step`, which is in [0, grad_accum). A rank with several
  /// virtual ranks passes the distance of a virtual rank from its first one.
  SampleOrder order(std::int64_t micro_step, std::int64_t offset = 0) const;

  /// This rank's range of a data set of which each sample is evaluated once. The sizes of the ranges differ by at most
  /// one.
  static EvaluationShard evaluation(std::int64_t size, int rank, int world_size);

 private:
  std::int64_t dataset_size_;
  std::int64_t batch_;
  std::int64_t samples_per_step_ = 0;
  std::int64_t steps_per_epoch_ = 0;
  int rank_;
  int world_size_;
  std::uint64_t seed_;
};

/// The batches of `share`, a range of a test set of `test_count` samples. `state` is in device memory.
std::vector<Slice> evaluation_slices(const StepState* state, std::int64_t test_count, const EvaluationShard& share,
                                     std::int64_t batch);

}  // namespace ddptrain
