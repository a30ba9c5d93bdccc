#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/train/gradient_tree.h"
#include "runtime/train/parameter_arena.h"

namespace ddptrain {

enum class OverlapMode : std::uint8_t {
  on,        ///< A bucket's sum over ranks starts as soon as its gradients are complete. Where the host carries it, it
             ///< may take until the next forward pass reads the bucket's weights.
  backward,  ///< The same, but a step waits for its sums.
  off,       ///< All start after backward.
  none,      ///< No communication at all; replicas drift apart. For measurements.
};

/// Starts the sum over ranks of a bucket's gradients: an all-reduce, or, where the arena is sharded, a reduce-scatter.
Communicator::Ticket start_sum(const ParameterArena& arena, std::size_t bucket, Communicator& communicator,
                               Stream stream);

/// Sums gradients over ranks, bucket by bucket, while backward runs.
///
/// Buckets are launched strictly in index order, so that every rank issues the same collectives whatever the order of
/// its ready() calls, and only in the last micro-step of an accumulation. Streams wait by events; the host waits in
/// finish() and wait_for() alone, and only for communicators that need it (MPI). All buckets but the last use the
/// communication stream; the last one, which has nothing left to hide behind, stays on the compute stream and so does
/// not wait for the others' updates.
class GradientReducer {
 public:
  /// Queues what follows a bucket's sum (arena.reduced_gradients() hold it) on `stream`; called in bucket order, or,
  /// where sums go on beneath the next forward pass, as they arrive.
  using Reduced = std::function<void(std::size_t bucket, Stream stream)>;

  /// `communicator` may be null with OverlapMode::none. `last_bucket`, where given, queues both the sum of the last
  /// bucket and what follows it. `tree`, where given, sums, or its subtrees are what is summed. All must outlive the
  /// reducer. On a CPU, OverlapMode::on is for what needs nothing but a bucket's own sum to follow it.
  GradientReducer(const ParameterArena& arena, Communicator* communicator, Device& device, OverlapMode mode,
                  Reduced reduced, Reduced last_bucket = nullptr, GradientTree* tree = nullptr);
  ~GradientReducer();  ///< Sums that are on their way end before, if no exception is on its way.
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Before the backward pass of every micro-step. Waits for the sums of the step before.
  void begin(bool last_micro_step);
  /// The gradient of `parameter` is complete in compute-stream order. Error where it does not exist, was reported
  /// before in this micro-step, or begin() is missing.
  void ready(std::size_t parameter);
  /// After the backward pass. Error where a parameter was not reported. In the last micro-step, work queued on the
  /// compute stream from now on comes after all that follows the sums; on a CPU with OverlapMode::on, only after
  /// wait_for(), or after what waits for the device.
  void finish();
  /// Work queued from now on comes after what follows the sum of this parameter's bucket.
  void wait_for(std::size_t parameter);

  bool communicates() const { return communicator_ != nullptr; }
  /// Whether sums go on beneath the next forward pass, on the cores that compute.
  bool goes_on() const;
  /// For which the host has waited for sums so far: where steps run on the host, what compute did not hide of them.
  double seconds_waited() const { return seconds_waited_; }

 private:
  struct InFlight {
    std::size_t bucket;
    Stream stream;
    Communicator::Ticket ticket;
    std::size_t span = 0;     ///< Of the timeline, where there is one.
    bool exchanging = false;  ///< Through the tree; the sum is to follow.
  };

  void launch_complete_buckets();
  void launch(std::size_t bucket);
  void wait_for_all();
  void take_finished();
  void take(const InFlight& arrived);
  void gather(InFlight summed);

  const ParameterArena& arena_;
  Communicator* communicator_;
  Device& device_;
  OverlapMode mode_;
  Reduced reduced_;
  Reduced last_bucket_;
  GradientTree* tree_;

  bool running_ = false;
  bool last_micro_step_ = false;
  std::vector<bool> is_ready_;        ///< Per parameter.
  std::vector<std::size_t> missing_;  ///< Per bucket: parameters still to come.
  std::size_t next_bucket_ = 0;       ///< First bucket not yet launched.
  double seconds_waited_ = 0.0;
  bool forked_ = false;  ///< The communication stream has work of this step.
  std::deque<InFlight> in_flight_;
  std::optional<Communicator::Ticket> newest_;  ///< Of this step.
};

}  // namespace ddptrain
