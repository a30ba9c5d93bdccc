#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/ops/optimizers/optimizer.h"
#include "runtime/train/step/store/parameter_arena.h"

namespace ddptrain {

/// Distributes the weights that this rank updates to the other ranks. Chosen once for a run, with the GradientSync.
class WeightStore {
 public:
  virtual ~WeightStore() = default;

  /// Work queued on the compute stream from now on can use the weights of unit `unit` of ParameterArena::units().
  /// Weights of units acquired before may be gone. `next` is the unit that will be acquired next, if it is known. Every
  /// rank calls it for the same units in the same order.
  virtual void acquire(std::size_t /*unit*/, std::optional<std::size_t> /*next*/) {}
  /// Call it when weights have been replaced, and when a step or an evaluation begins.
  virtual void changed() {}
  virtual double seconds_waited() const { return 0.0; }  ///< How long the host has waited in acquire() in all.
  /// `slice` updates this rank's shard of `bucket`, or of all buckets from `bucket` on. Adds the addresses of the
  /// copies that the update also writes.
  virtual void add_copies(UpdateSlice& /*slice*/, std::size_t /*bucket*/) const {}
  /// Whether updates write to other ranks, by add_copies().
  virtual bool update_sends() const { return false; }
  /// Starts to send this rank's shard of `bucket`, which has been updated in the order of `stream`.
  virtual void updated(std::size_t /*bucket*/, Stream /*stream*/) {}
  /// Connects the ranks that update the other shards. Null if this rank updates everything.
  virtual Communicator* shard_ranks() { return nullptr; }
  /// The ranks to which the step deals work on whole matrices. Null: this rank does all of it.
  virtual Communicator* working_ranks() { return nullptr; }
  /// Call it after the last bucket of a step. Work queued on the compute stream from now on can use all weights, or
  /// those that it acquires.
  virtual void finish() {}
};

/// For ranks that update all weights. Also for steps without communication, in which other ranks' shards do not change.
/// `working_ranks`: see WeightStore; it outlives the store.
std::unique_ptr<WeightStore> make_replicated_weights(Communicator* working_ranks = nullptr);
/// ZeRO-1 and ZeRO-2: all-gathers each bucket while the next one is updated.
std::unique_ptr<WeightStore> make_gathered_weights(const ParameterArena& arena);
/// ZeRO-3: all-gathers the weights of a unit before their use, one unit ahead. `device` and `communicator` are the
/// arena's, or a meta device and communicator that only count.
std::unique_ptr<WeightStore> make_sharded_weights(const ParameterArena& arena, Device& device,
                                                  Communicator& communicator);
/// ZeRO-1 on GPUs that can write each other's weights: the update writes all copies, and the ranks meet at the end.
std::unique_ptr<WeightStore> make_peer_weights(const ParameterArena& arena, const PeerInboxes& meeting);

}  // namespace ddptrain
