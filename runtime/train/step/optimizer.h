#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "runtime/device/device.h"
#include "runtime/ops/optimizers/optimizer.h"
#include "runtime/train/step/gradient_norm.h"
#include "runtime/train/step/store/parameter_arena.h"
#include "runtime/train/step/store/weight_store.h"
#include "runtime/train/step/whole/matrix_directions.h"
#include "runtime/train/step/whole/trust_ratios.h"

namespace ddptrain {

/// What happens after a step with a loss or a gradient that is NaN or infinite.
enum class OnNonFinite : std::uint8_t {
  stop,  ///< The run ends when the host next checks. The parameters may contain NaN.
  skip,  ///< The step changes no weights, master weights or slots.
};

/// Updates the arena. A bucket is updated as soon as its gradients are reduced. With clipping, skipped steps, or a rule
/// that needs whole parameters, all buckets wait for the norm of the whole gradient, and one launch updates as many as
/// a slice of the arena can have.
class Optimizer {
 public:
  /// `clip_norm` 0: no clipping. `nonfinite` is in device memory; null: gradients are not checked. For `pipeline` see
  /// GradientNorm. Arena and pipeline outlive the optimizer.
  Optimizer(const OptimizerSettings& settings, float clip_norm, const ParameterArena& arena,
            NonFinite* nonfinite = nullptr, OnNonFinite on_nonfinite = OnNonFinite::stop, Pipeline* pipeline = nullptr);

  /// Whether a bucket is updated as soon as it is reduced.
  bool updates_at_once() const { return !waits_; }

  /// Call it before the first bucket of a step, after all buckets of the step before. On a CPU, `step` may advance
  /// while buckets still wait for their update. `weights` distributes the updated weights of this step.
  void begin_step(StepRef step, WeightStore& weights);
  /// Call it once for each bucket, when its reduced gradients are in place in the order of `stream`.
  void bucket_reduced(std::size_t bucket, Stream stream);
  /// Replaces bucket_reduced() for a bucket that is not reduced yet: see OptimizerOps::sum_and_update().
  void sum_and_update(std::size_t bucket, const PeerInboxes& peers, Stream stream);
  /// Call it after all buckets. Work queued on the compute stream from now on sees the new weights.
  void finish_step();
  /// The communication of finish_step() about whole matrices, without compute.
  void send_directions();

  /// Logs the norm of the last step's whole gradient before clipping (StepLog); the same on all ranks. All buckets must
  /// be reduced. `weights` is the store of that step. Does not wait on GPUs. Collective.
  void log_norm(StepState* state, WeightStore& weights);
  /// Returns the same norm. Collective; waits.
  double gradient_norm(WeightStore& weights);

 private:
  const GradientNorm& queue_norm(WeightStore& weights);
  void find_directions();
  void add_momentum();
  void update(std::size_t first, std::size_t buckets, Stream stream);
  UpdateSlice slice_of(std::size_t first, std::size_t buckets) const;

  OptimizerSettings settings_;
  float clip_norm_;
  const ParameterArena& arena_;
  Device& device_;
  OptimizerOps& ops_;
  NonFinite* nonfinite_;
  Pipeline* pipeline_;
  bool waits_;                                  ///< All updates wait for the norm.
  std::optional<GradientNorm> norm_;            ///< Made on first use.
  std::optional<MatrixDirections> directions_;  ///< Of a rule that needs whole matrices.
  std::optional<TrustRatios> ratios_;           ///< Of a rule that needs norms of whole parameters.
  StepRef step_;
  StepState begun_;  ///< On a CPU: the number of the step.
  WeightStore* weights_ = nullptr;
};

}  // namespace ddptrain
