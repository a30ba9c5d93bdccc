#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/ops/optimizer.h"
#include "runtime/train/parameter_arena.h"

namespace ddptrain {

/// What becomes of a step with a loss or a gradient that is NaN or infinite.
enum class OnNonFinite : std::uint8_t {
  stop,  ///< The run ends when the host next looks. The parameters may be spoilt.
  skip,  ///< The step is left out: weights, master weights and slots stay.
};

/// Updates the arena bucket by bucket: each as soon as its gradients are summed over ranks, or, with clipping and where
/// steps may be left out, all of them once the norm of the whole gradient is known; that of each bucket is worked out
/// as soon as it is summed. Where the arena is sharded, each rank updates its part of a bucket, and the parts are
/// gathered on all ranks behind that; where ranks reach each other's memory (ParameterArena::reaches_peers), each adds
/// up its parts from the gradients of all ranks after backward, and writes the new weights to all.
class Optimizer {
 public:
  /// `clip_norm` 0: no clipping. `fused_sum`: sum and update of the last bucket in one kernel, where GPUs reach each
  /// other's memory and nothing comes between the two (clipping, shards, lamb). Collective. Error for lamb on a sharded
  /// arena, as it needs the norms of whole parameters. `nonfinite` lies where the device computes, or is null:
  /// gradients are not looked at then. Arena, device and communicator outlive the optimizer.
  Optimizer(const OptimizerSettings& settings, float clip_norm, const ParameterArena& arena, Device& device,
            Communicator& communicator, bool fused_sum, NonFinite* nonfinite = nullptr,
            OnNonFinite on_nonfinite = OnNonFinite::stop);

  /// Before the first bucket of a step, and behind all of the one before. On a CPU, `step` may go on while buckets are
  /// still to be updated. `communicates`: false leaves a sharded arena's weights ungathered, and norms those of this
  /// rank's parts.
  void begin_step(StepRef step, bool communicates);
  /// Of the whole gradient, before the first update.
  bool needs_norm() const { return clip_norm_ > 0.0f || on_nonfinite_ == OnNonFinite::skip; }
  /// Once for each bucket: its summed gradients are in place, in the order of `stream`.
  void bucket_reduced(std::size_t bucket, Stream stream);
  /// Whether sum_and_update() takes the place of the last bucket's sum over ranks and bucket_reduced(); the same on all
  /// ranks.
  bool sums_last_bucket() const { return peers_.size > 1; }
  /// Why it does not, although memory is symmetric.
  const std::string& why_not_fused() const { return why_not_fused_; }
  void sum_and_update(std::size_t bucket, Stream stream);
  /// On the compute stream, after all buckets. Work queued on it from now on sees the new weights.
  void finish_step();
  /// What finish_step() of a communicating step queues where ranks reach each other's memory, and nothing of a step
  /// besides.
  void sum_and_update_by_peers();

  /// Of the whole gradient of the last step, before clipping: the same on all ranks. Where no flag needs it, it is
  /// worked out now, and the gradients of the last bucket may change. `communicates`: as in begin_step(). Collective;
  /// waits.
  double gradient_norm(bool communicates);

 private:
  /// Empty where sum and update can be one kernel.
  std::string what_forbids_fusing(bool wanted, std::size_t inbox_bytes) const;
  void find_peers(std::size_t inbox_bytes);
  void sum_by_peers();
  std::size_t square_count() const;
  Tensor squares()
      const;  ///< f32: sum of squares of each bucket's gradients, or of each chunk's where these are whole.
  void clear_others_squares();
  void add_squares(std::size_t bucket, Stream stream);
  void find_squares(bool communicates);
  float* clip_scale() const;
  void update(std::size_t bucket, Stream stream);
  void gather(std::size_t bucket, Stream stream);
  void scale_and_update();

  OptimizerSettings settings_;
  float clip_norm_;
  const ParameterArena& arena_;
  Device& device_;
  OptimizerOps& ops_;
  Communicator& communicator_;
  NonFinite* nonfinite_;
  OnNonFinite on_nonfinite_;
  Buffer clip_;  ///< f32: squares(), then the scale. Made when it is needed.
  std::string why_not_fused_;
  Buffer inbox_;  ///< Of sum_and_update(), as peers_.
  PeerInboxes peers_;
  Buffer meeting_memory_;  ///< Of meet(), as meeting_.
  PeerInboxes meeting_;
  StepRef step_;
  StepState begun_;  ///< Where a CPU keeps the number of the step.
  bool gathers_ = false;
  Communicator::Ticket last_gather_ = 0;
};

}  // namespace ddptrain
