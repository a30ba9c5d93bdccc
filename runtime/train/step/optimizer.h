#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "runtime/device/device.h"
#include "runtime/ops/optimizer.h"
#include "runtime/train/step/gradient_norm.h"
#include "runtime/train/step/store/parameter_arena.h"
#include "runtime/train/step/store/weight_store.h"

namespace ddptrain {

/// What becomes of a step with a loss or a gradient that is NaN or infinite.
enum class OnNonFinite : std::uint8_t {
  stop,  ///< The run ends when the host next looks. The parameters may be spoilt.
  skip,  ///< The step is left out: weights, master weights and slots stay.
};

/// Updates the arena bucket by bucket: each as soon as its gradients are reduced, or, with clipping and if steps may be
/// left out, all of them once the norm of the whole gradient is known.
class Optimizer {
 public:
  /// `clip_norm` 0: no clipping. `nonfinite` lies where the device computes, or is null: then gradients are not
  /// checked. `pipeline`: see GradientNorm. Error for lamb on a sharded arena, as it needs the norms of whole
  /// parameters. Arena and pipeline outlive this.
  Optimizer(const OptimizerSettings& settings, float clip_norm, const ParameterArena& arena,
            NonFinite* nonfinite = nullptr, OnNonFinite on_nonfinite = OnNonFinite::stop, Pipeline* pipeline = nullptr);

  /// Whether a bucket is updated as soon as it is reduced.
  bool updates_at_once() const { return !clips_; }

  /// Before the first bucket of a step, and behind all of the one before. On a CPU, `step` may go on while buckets are
  /// still to be updated. `weights` hands on what is updated in this step.
  void begin_step(StepRef step, WeightStore& weights);
  /// Once for each bucket: its reduced gradients are in place, in the order of `stream`.
  void bucket_reduced(std::size_t bucket, Stream stream);
  /// In place of bucket_reduced() for a bucket that is not reduced: see OptimizerOps::sum_and_update().
  void sum_and_update(std::size_t bucket, const PeerInboxes& peers, Stream stream);
  /// On the compute stream, after all buckets. Work queued on it from now on sees the new weights.
  void finish_step();

  /// Of the whole gradient of the last step, before clipping: the same on all ranks. The gradients of all buckets are
  /// reduced, and the step's weights went to `weights`. Collective; waits.
  double gradient_norm(WeightStore& weights);

 private:
  void update(std::size_t bucket, Stream stream);
  UpdateSlice slice_of(std::size_t bucket) const;

  OptimizerSettings settings_;
  float clip_norm_;
  const ParameterArena& arena_;
  Device& device_;
  OptimizerOps& ops_;
  NonFinite* nonfinite_;
  Pipeline* pipeline_;
  bool clips_;                        ///< All updates wait for the norm.
  std::optional<GradientNorm> norm_;  ///< Made when it is needed.
  StepRef step_;
  StepState begun_;  ///< Where a CPU keeps the number of the step.
  WeightStore* weights_ = nullptr;
};

}  // namespace ddptrain
