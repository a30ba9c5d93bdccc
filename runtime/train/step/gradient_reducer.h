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
  on,        ///< A bucket's all-reduce starts when its gradients are complete. With MPI on CPUs it may last until the
             ///< next forward pass reads the bucket's weights.
  backward,  ///< The same, but all end within the step.
  off,       ///< All start after the backward pass.
  none,      ///< No communication. Replicas drift apart. For measurements.
};

/// Reduces gradients over ranks, bucket by bucket, while backward runs.
///
/// Buckets start strictly in index order, so that every rank issues the same collectives whatever the order of its
/// ready() calls. They start in the last pass of a step only, unless the sync reduces every pass. Streams wait by
/// events. The host waits only in begin(), claim(), finish(), wait_for() and the destructor, and only for communicators
/// that need it (MPI). All buckets but the last use the communication stream. The last bucket has no compute left to
/// overlap with. It stays on the compute stream, so it does not wait for the updates of the others.
class GradientReducer {
 public:
  /// Calls `reduced` in bucket order, or in the order of arrival if reductions may outlast the step. `virtual_ranks`
  /// adds the gradients of this rank before `sync` reduces them; null: nothing to add. The arguments outlive the
  /// reducer. On a CPU, OverlapMode::on needs sync.overlaps_next_forward(). OverlapMode::none needs a sync that does
  /// not communicate.
  GradientReducer(const ParameterArena& arena, GradientSync& sync, OverlapMode mode, GradientSync::Reduced reduced,
                  VirtualRankSums* virtual_ranks = nullptr);
  ~GradientReducer();  ///< Waits for running reductions, except during an exception.
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Call it before backward pass number `pass` of a step. Waits for the reductions of the pass before.
  void begin(std::int64_t pass, bool last);
  /// Allows work queued from now on to write gradients of the bucket: see GradientSync::claim(). Error if gradients in
  /// the same place have not been sent.
  void claim(std::size_t bucket);
  /// Claims the buckets that the backward pass of a unit of ParameterArena::units() may write: its own, and those of
  /// the unit before it (see Model::backward()).
  void claim_unit(std::size_t unit);
  /// Reports that the gradient of `parameter` is complete in the order of the compute stream. Error if the parameter
  /// does not exist, has been reported before in this pass, or begin() is missing.
  void ready(std::size_t parameter);
  /// Call it after the backward pass. Error if a parameter has not been reported. After the last pass, work
  /// queued on the compute stream from now on runs after the reductions and updates. On a CPU with OverlapMode::on this
  /// needs wait_for(), or a wait for the device.
  void finish();
  /// Work queued from now on runs after the reduction and update of this parameter's bucket.
  void wait_for(std::size_t parameter);

  OverlapMode mode() const { return mode_; }
  bool sums_every_pass() const { return sync_.sums_every_pass(); }
  bool communicates() const { return mode_ != OverlapMode::none; }
  /// Whether reductions overlap with the next forward pass and use the cores that compute it.
  bool overlaps_next_forward() const;
  /// How long the host has waited for reductions in all.
  double seconds_waited() const { return seconds_waited_; }
  bool has_sums_on_their_way() const { return !in_flight_.empty(); }

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
  VirtualRankSums* virtual_ranks_;
  Communicator& communicator_;
  Device& device_;
  OverlapMode mode_;
  GradientSync::Reduced reduced_;
  std::vector<std::vector<std::size_t>> unit_buckets_;  ///< Per unit of the arena.

  bool running_ = false;
  bool sums_ = false;                                ///< This pass starts buckets.
  std::vector<bool> is_ready_;                       ///< Per parameter.
  std::vector<std::size_t> missing_;                 ///< Per bucket: number of parameters that are not ready.
  std::size_t next_bucket_ = 0;                      ///< The first bucket that has not started.
  std::vector<std::optional<std::size_t>> claimed_;  ///< Per place of gradients: the bucket that uses it in this pass.
  double seconds_waited_ = 0.0;
  bool forked_ = false;  ///< The communication stream has work of this step.
  std::deque<InFlight> in_flight_;
  std::optional<Communicator::Ticket> newest_;  ///< The last ticket of this step.
};

}  // namespace ddptrain
