#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/train/step/store/parameter_arena.h"
#include "runtime/train/step/sync/gradient_sync.h"

namespace ddptrain {

enum class OverlapMode : std::uint8_t {
  on,        ///< A bucket's sum over ranks starts as soon as its gradients are complete. If the host carries it, it may
             ///< take until the next forward pass reads the bucket's weights.
  backward,  ///< The same, but a step waits for its sums.
  off,       ///< All start after backward.
  none,      ///< No communication at all; replicas drift apart. For measurements.
};

/// Reduces gradients over ranks, bucket by bucket, while backward runs.
///
/// Buckets are launched strictly in index order, so that every rank issues the same collectives whatever the order of
/// its ready() calls, and only in the last pass of a step, unless the sync sums every pass. Streams wait by events; the
/// host waits in finish() and wait_for() alone, and only for communicators that need it (MPI). All buckets but the last
/// use the communication stream; the last one, which has nothing left to hide behind, stays on the compute stream and
/// so does not wait for the others' updates.
class GradientReducer {
 public:
  /// `reduced` is called in bucket order, or, if sums may outlast the step, as they arrive. All outlive the reducer. On
  /// a CPU, OverlapMode::on is for syncs that may outlast the step. OverlapMode::none is for syncs that do not
  /// communicate.
  GradientReducer(const ParameterArena& arena, GradientSync& sync, OverlapMode mode, GradientSync::Reduced reduced);
  ~GradientReducer();  ///< Sums that are on their way end before, if no exception is on its way.
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Before backward pass number `pass` of a step. Waits for the sums of the pass before.
  void begin(std::int64_t pass, bool last);
  /// Work queued from now on may write gradients of the bucket: see GradientSync::claim(). Error if gradients in its
  /// place have not been sent.
  void claim(std::size_t bucket);
  /// The gradient of `parameter` is complete in compute-stream order. Error if it does not exist, was reported before
  /// in this micro-step, or begin() is missing.
  void ready(std::size_t parameter);
  /// After the backward pass. Error if a parameter was not reported. In the last micro-step, work queued on the compute
  /// stream from now on comes after all that follows the sums; on a CPU with OverlapMode::on, only after wait_for(), or
  /// after what waits for the device.
  void finish();
  /// Work queued from now on comes after what follows the sum of this parameter's bucket.
  void wait_for(std::size_t parameter);

  OverlapMode mode() const { return mode_; }
  bool sums_every_pass() const { return sync_.sums_every_pass(); }
  bool communicates() const { return mode_ != OverlapMode::none; }
  /// Whether sums go on under the next forward pass, on the cores that compute.
  bool goes_on() const;
  /// Total time for which the host has waited for sums.
  double seconds_waited() const { return seconds_waited_; }

 private:
  struct InFlight {
    std::size_t bucket;
    Stream stream;
    Communicator::Ticket ticket;
  };

  void launch_complete_buckets();
  void launch(std::size_t bucket);
  void note(std::size_t bucket, Stream stream, std::optional<Communicator::Ticket> ticket);
  void wait_for_all();
  void take_finished();

  const ParameterArena& arena_;
  GradientSync& sync_;
  Communicator& communicator_;
  Device& device_;
  OverlapMode mode_;
  GradientSync::Reduced reduced_;

  bool running_ = false;
  bool sums_ = false;                                ///< This pass starts buckets.
  std::vector<bool> is_ready_;                       ///< Per parameter.
  std::vector<std::size_t> missing_;                 ///< Per bucket: parameters still to come.
  std::size_t next_bucket_ = 0;                      ///< First bucket not yet launched.
  std::vector<std::optional<std::size_t>> claimed_;  ///< By place of gradients: the bucket, in this pass.
  double seconds_waited_ = 0.0;
  bool forked_ = false;  ///< The communication stream has work of this step.
  std::deque<InFlight> in_flight_;
  std::optional<Communicator::Ticket> newest_;  ///< Of this step.
};

}  // namespace ddptrain
