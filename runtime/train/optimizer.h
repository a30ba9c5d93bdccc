#pragma once

#include <cstddef>

#include "runtime/backend/backend.h"
#include "runtime/train/parameter_arena.h"

namespace ddptrain {

/// Updates the arena bucket by bucket: each as soon as its gradients are averaged, or, with clipping, all of them once
/// the norm of the whole gradient is known.
class Optimizer {
 public:
  /// `clip_norm` 0: no clipping. Arena and backend outlive the optimizer.
  Optimizer(const OptimizerSettings& settings, float clip_norm, const ParameterArena& arena, Backend& backend);

  /// Whether settings.kind keeps two moments.
  static bool needs_second_moment(OptimizerKind kind) { return kind != OptimizerKind::sgd; }

  void begin_step(StepRef step) { step_ = step; }
  /// In bucket order: the averaged gradients of `bucket` are in place, in the order of `stream`.
  void bucket_reduced(std::size_t bucket, Stream stream);
  /// On the compute stream, after all buckets.
  void finish_step();

 private:
  void update(std::size_t bucket, Stream stream);

  OptimizerSettings settings_;
  float clip_norm_;
  const ParameterArena& arena_;
  Backend& backend_;
  Buffer clip_;  ///< f32: sum of squares, scale.
  StepRef step_;
};

}  // namespace ddptrain
