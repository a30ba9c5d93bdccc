#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/device/peer_inboxes.h"
#include "runtime/train/step/store/parameter_arena.h"
#include "runtime/train/step/sync/virtual_rank_sums.h"

namespace ddptrain {

/// A communication path: it turns the gradients of a bucket into their sum over all ranks. The functions below make the
/// class of each path. The reducer decides when a bucket starts. Every rank calls the same methods in the same order.
/// The rest of a step knows the path in two places only. Optimizer::sum_and_update() is a part of the fused path. The
/// WeightStore is chosen together with the path: peer reduction needs make_peer_weights().
class GradientSync {
 public:
  using Ticket = Communicator::Ticket;
  /// Queues the work after a bucket's reduction in the order of `stream`. ParameterArena::reduced_gradients() has the
  /// sum.
  using Reduced = std::function<void(std::size_t bucket, Stream stream)>;

  virtual ~GradientSync() = default;

  /// Whether buckets start in every pass of a step, because the next pass reuses the memory of their gradients.
  virtual bool sums_every_pass() const { return false; }
  /// Whether operations on a bucket run while the backward pass goes on.
  virtual bool overlaps_backward() const { return true; }
  /// Called before backward pass number `pass` of a step.
  virtual void begin_pass(std::int64_t /*pass*/, bool /*last*/) {}
  /// Allows work that is queued on the compute stream from now on to write gradients of the bucket: it runs after the
  /// readers of other buckets in the same memory. No operation on a bucket in that memory is running.
  virtual void claim(std::size_t /*bucket*/) {}
  /// Queues the first operation on a bucket whose gradients are complete in the order of `stream`. Returns the ticket
  /// of the communicator. Without a ticket no operation is running: either `reduced` has been called, or the path
  /// includes the update, or it handles all buckets when the last one starts.
  virtual std::optional<Ticket> start(std::size_t bucket, Stream stream, const Reduced& reduced) = 0;
  /// Called when the operation of the bucket's last ticket has ended. Queues the next one, or calls `reduced`.
  virtual std::optional<Ticket> advance(std::size_t bucket, Stream stream, const Reduced& reduced);

  /// Whether a CPU may finish the reduction and update of a bucket during the next forward pass, before that pass reads
  /// the bucket's weights. It may if the update needs only the bucket's own sum, and no other rank needs the result.
  virtual bool overlaps_next_forward() const { return false; }
  /// Called after a step, for a gradient norm: reduces gradients that the step itself did not reduce. Collective.
  virtual void complete_sums() {}
  virtual std::size_t bytes() const { return 0; }  ///< Device memory that the path has allocated.
};

/// No communication: each rank updates with its own gradients.
std::unique_ptr<GradientSync> make_no_sync();
/// All-reduce by NCCL or MPI.
std::unique_ptr<GradientSync> make_all_reduce(const ParameterArena& arena);
/// ZeRO-1: each rank gets the sum of its shard of a bucket.
std::unique_ptr<GradientSync> make_reduce_scatter(const ParameterArena& arena);
/// Queues the kernel that reduces and updates a bucket: Optimizer::sum_and_update().
using SumAndUpdate = std::function<void(std::size_t bucket, Stream stream)>;
/// All-reduce, but `sum_and_update` handles the last bucket.
std::unique_ptr<GradientSync> make_fused_last(const ParameterArena& arena, SumAndUpdate sum_and_update);
/// ZeRO-1 by direct peer reduction, on GPUs that can read each other's gradients: after the backward pass, each rank
/// adds its shards from all ranks. `meeting` is for ReductionOps::meet().
std::unique_ptr<GradientSync> make_peer_reduction(const ParameterArena& arena, const PeerInboxes& meeting);
/// The upper levels of the tree of virtual ranks, over the ranks. Each rank gets one shard of a bucket from all other
/// ranks and adds them in the tree's order. Unless the arena is sharded, all ranks then gather the sums. A rank sends
/// 2 (W - 1) / W of a bucket's bytes, like a ring all-reduce. `below` has the lower levels and outlives the result.
/// Error if the number of ranks is not a power of two.
std::unique_ptr<GradientSync> make_tree_exchange(const ParameterArena& arena, const VirtualRankSums& below);
/// ZeRO-2 and ZeRO-3: each rank accumulates the sums of its shard of a bucket over the passes.
std::unique_ptr<GradientSync> make_sharded_sums(const ParameterArena& arena);
/// The same in the order of the tree of virtual ranks. In each pass, consecutive virtual ranks are on consecutive
/// ranks: the ranks are the lower levels of the tree, and the passes the upper ones. Error if the number of ranks or
/// passes is not a power of two.
std::unique_ptr<GradientSync> make_sharded_tree(const ParameterArena& arena, std::int64_t passes);

/// Spans of buckets in the communication lane of the device's timeline. A span begins with the bucket's first operation
/// and ends with its last. Does nothing without a timeline.
class BucketSpans {
 public:
  explicit BucketSpans(const ParameterArena& arena) : device_(arena.device()), spans_(arena.plan().buckets.size()) {}
  void begin(std::size_t bucket, Stream stream);
  void end(std::size_t bucket, Stream stream);

 private:
  Device& device_;
  std::vector<std::size_t> spans_;
};

}  // namespace ddptrain
