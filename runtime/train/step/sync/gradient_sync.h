#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/train/step/optimizer.h"
#include "runtime/train/step/store/parameter_arena.h"
#include "runtime/train/step/virtual_rank_sums.h"

namespace ddptrain {

/// How the gradients of a bucket become their sum over all ranks: one class per communication path, each in the file of
/// its name. The reducer decides when a bucket starts; nothing else in a step knows which path it takes. Every rank
/// calls the same methods in the same order.
class GradientSync {
 public:
  using Ticket = Communicator::Ticket;
  /// Queues what follows a bucket's sum (ParameterArena::reduced_gradients() hold it) in the order of `stream`.
  using Reduced = std::function<void(std::size_t bucket, Stream stream)>;

  virtual ~GradientSync() = default;

  /// Whether buckets start in every pass, not only in the last one of a step: gradients of one pass give their place to
  /// those of the next.
  virtual bool sums_every_pass() const { return false; }
  /// Before the backward pass number `pass` of a step.
  virtual void begin_pass(std::int64_t /*pass*/, bool /*last*/) {}
  /// Gradients of the bucket may be written by work that is queued on the compute stream from now on: it comes after
  /// what reads others in their place. No operation on a bucket of that place is under way.
  virtual void claim(std::size_t /*bucket*/) {}
  /// Queues the first operation on a bucket whose gradients are complete in the order of `stream`. The ticket is of the
  /// communicator. Without a ticket nothing is under way: `reduced` has been called, or the path does by itself what
  /// follows the sum, or does all buckets when the last one starts.
  virtual std::optional<Ticket> start(std::size_t bucket, Stream stream, const Reduced& reduced) = 0;
  /// The operation of the bucket's newest ticket has ended. Queues the next one, or calls `reduced`.
  virtual std::optional<Ticket> advance(std::size_t bucket, Stream stream, const Reduced& reduced);

  /// Whether a bucket needs nothing but its own sum to be updated, so that the sum may take until the next forward pass
  /// reads the bucket's weights.
  virtual bool may_outlast_step() const { return false; }
  /// Sums what the step has left unsummed of the gradients; the step is over. Collective.
  virtual void complete_sums() {}
  virtual std::size_t bytes() const { return 0; }  ///< Of device memory that it has allocated.
};

/// No communication: each rank updates by its own gradients.
std::unique_ptr<GradientSync> make_no_sync();
/// All-reduce by NCCL or MPI.
std::unique_ptr<GradientSync> make_all_reduce(const ParameterArena& arena);
/// ZeRO-1: each rank gets the sum of its part of a bucket.
std::unique_ptr<GradientSync> make_reduce_scatter(const ParameterArena& arena);
/// All-reduce, but one kernel reduces and updates the last bucket: OptimizerOps::sum_and_update() with `inboxes`.
std::unique_ptr<GradientSync> make_fused_last(const ParameterArena& arena, Optimizer& optimizer,
                                              const PeerInboxes& inboxes);
/// ZeRO-1 of GPUs that reach each other's gradients: after backward, each rank adds up its parts from all ranks.
/// `meeting`: of ReductionOps::meet().
std::unique_ptr<GradientSync> make_peer_reduction(const ParameterArena& arena, const PeerInboxes& meeting);
/// The levels of the tree of virtual ranks above those of a rank. Each rank gets one part of a bucket from all others,
/// adds these in the tree's order and, unless the arena is sharded, all gather the sums: 2 (W - 1) / W of a bucket's
/// bytes per rank, as a ring all-reduce sends. `below` outlives this. Error if the ranks are no power of two.
std::unique_ptr<GradientSync> make_tree_exchange(const ParameterArena& arena, VirtualRankSums& below);
/// ZeRO-2 and ZeRO-3: each rank adds up the sums of its part of a bucket, pass by pass.
std::unique_ptr<GradientSync> make_sharded_sums(const ParameterArena& arena);
/// The same over the tree of virtual ranks: a pass has neighbouring ones on neighbouring ranks, and the sums of passes
/// are the tree's levels above. Error if ranks and passes are no powers of two.
std::unique_ptr<GradientSync> make_sharded_tree(const ParameterArena& arena, std::int64_t passes);
/// `inner` behind the sum over this rank's virtual ranks, which outlive it.
std::unique_ptr<GradientSync> make_folded(VirtualRankSums& below, std::unique_ptr<GradientSync> inner);

/// A bucket's span in the communication lane of the device's timeline, if there is one: begins with its first
/// operation, ends with its last.
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
