#pragma once

#include <cstdint>
#include <vector>

#include "runtime/core/step.h"

namespace ddptrain {

/// A contiguous part of a data set.
struct EvaluationShard {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Deals the training samples to ranks. A step consumes samples_per_step() = batch * grad_accum * world_size samples,
/// the next stretch of the epoch's permutation; rank r takes in micro-step m the rows from (m * world_size + r) *
/// batch. So a step's set of samples depends on samples_per_step() alone, not on how ranks and micro-steps cut it, and
/// no sample comes twice in an epoch. What is left at the end of the permutation (dropped() samples, others every
/// epoch) is left out.
class DistributedSampler {
 public:
  /// UsageError where a size is not positive or one step needs more samples than there are.
  DistributedSampler(std::int64_t dataset_size, std::int64_t batch, std::int64_t grad_accum, int rank, int world_size,
                     std::uint64_t seed);

  std::int64_t steps_per_epoch() const { return steps_per_epoch_; }
  std::int64_t samples_per_step() const { return samples_per_step_; }
  std::int64_t dropped() const { return dataset_size_ - steps_per_epoch_ * samples_per_step_; }

  /// The samples of this rank's batch in micro-step `micro_step`, in [0, grad_accum); of rank `rank + neighbour` for
  /// who takes the part of several.
  SampleOrder order(std::int64_t micro_step, std::int64_t neighbour = 0) const;

  /// This rank's part of a data set of `size` samples that are each to be seen once; sizes differ by at most one.
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

/// The batches of `share`, of a test set of `test_count` samples. `state`: of the step, on the device.
std::vector<Slice> evaluation_slices(const StepState* state, std::int64_t test_count, const EvaluationShard& share,
                                     std::int64_t batch);

}  // namespace ddptrain
