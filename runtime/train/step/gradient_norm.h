#pragma once

#include "runtime/device/device.h"
#include "runtime/ops/reduction.h"
#include "runtime/train/step/pipeline.h"
#include "runtime/train/step/store/parameter_arena.h"
#include "runtime/train/step/store/weight_store.h"

namespace ddptrain {

/// The norm of the whole gradient: sums of squares of each bucket, or of each chunk if the arena has whole chunks.
class GradientNorm {
 public:
  /// `pipeline`: to the ranks with the rest of the gradient; null: there are none. Arena and pipeline outlive this.
  /// Collective among these ranks.
  GradientNorm(const ParameterArena& arena, Pipeline* pipeline);

  /// Before the first bucket of a step.
  void begin();
  /// The sums of this rank's part of a bucket's reduced gradients, in the order of `stream`.
  void add(std::size_t bucket, Stream stream);
  /// After the last bucket, on the compute stream: the sums are those of all ranks' parts. Collective.
  void finish(WeightStore& weights);

  Tensor squares() const;                                                             ///< f32, of all stages
  float* clip_scale() const { return static_cast<float*>(memory_.data()) + count_; }  ///< Room for it, on the device.
  double value() const;  ///< NaN or infinite as the sums are. Waits.

 private:
  const ParameterArena& arena_;
  Device& device_;
  ReductionOps& ops_;
  Pipeline* pipeline_;
  std::size_t first_ = 0;  ///< Of this stage, among
  std::size_t count_;      ///< those of all.
  Buffer memory_;          ///< f32: squares(), then the scale.
};

}  // namespace ddptrain
