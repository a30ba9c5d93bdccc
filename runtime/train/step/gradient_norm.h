#pragma once

#include "runtime/device/device.h"
#include "runtime/ops/reduction.h"
#include "runtime/train/step/pipeline.h"
#include "runtime/train/step/store/parameter_arena.h"
#include "runtime/train/step/store/weight_store.h"

namespace ddptrain {

/// The norm of the whole gradient. It adds the sums of squares of all buckets, or of all chunks if the arena has whole
/// chunks.
class GradientNorm {
 public:
  /// `pipeline` connects the ranks with the rest of the gradient; null: this rank has all of it. Arena and pipeline
  /// outlive the object. Collective among these ranks.
  GradientNorm(const ParameterArena& arena, Pipeline* pipeline);

  /// Call it before the first bucket of a step.
  void begin();
  /// Adds the squares of this rank's part of a bucket's reduced gradients, in the order of `stream`.
  void add(std::size_t bucket, Stream stream);
  /// Call it after the last bucket: adds the squares of all ranks, on the compute stream. Collective.
  void finish(WeightStore& weights);

  Tensor squares() const;                                                             ///< f32, of all stages.
  float* clip_scale() const { return static_cast<float*>(memory_.data()) + count_; }  ///< In device memory.
  double value() const;  ///< NaN or infinite if the gradient is. Waits.

 private:
  const ParameterArena& arena_;
  Device& device_;
  ReductionOps& ops_;
  Pipeline* pipeline_;
  std::size_t first_ = 0;  ///< Index of this stage's first sum of squares.
  std::size_t count_;      ///< Number of sums over all stages.
  Buffer memory_;          ///< f32: squares(), then the scale.
};

}  // namespace ddptrain
