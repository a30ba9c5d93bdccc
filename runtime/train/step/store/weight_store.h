#pragma once

#include <cstddef>
#include <memory>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/ops/optimizer.h"
#include "runtime/train/step/store/parameter_arena.h"

namespace ddptrain {

/// How the weights that this rank updates become those of all ranks. Chosen once, with the GradientSync.
class WeightStore {
 public:
  virtual ~WeightStore() = default;

  /// Work queued on the compute stream from now on sees the weights of the unit, a place in ParameterArena::units(),
  /// and may leave others unseen that it saw before. `next`: the unit that will be acquired next, if there is one of
  /// this number. Every rank calls it for the same units in the same order.
  virtual void acquire(std::size_t /*unit*/, std::size_t /*next*/) {}
  /// Weights have been replaced, a step or an evaluation begins.
  virtual void changed() {}
  virtual double seconds_waited() const { return 0.0; }  ///< In all, by the host in acquire().
  /// Adds to `slice`, by which this rank updates its part of `bucket`, the other places that the update writes.
  virtual void add_copies(UpdateSlice& /*slice*/, std::size_t /*bucket*/) const {}
  /// Whether updates themselves write to other ranks: add_copies() does something.
  virtual bool update_sends() const { return false; }
  /// This rank's part of `bucket` has been updated in the order of `stream`: starts to send it.
  virtual void updated(std::size_t /*bucket*/, Stream /*stream*/) {}
  /// To the ranks that update other parts; null: there are none.
  virtual Communicator* parts() { return nullptr; }
  /// After the last bucket of a step. Work queued on the compute stream from now on sees all weights, or those that it
  /// acquires.
  virtual void finish() {}
};

/// Every rank updates all weights, or, without communication, weights of other parts stay as they are.
std::unique_ptr<WeightStore> make_replicated_weights();
/// ZeRO-1 and ZeRO-2: an all-gather for each bucket, which overlaps with the update of the next one.
std::unique_ptr<WeightStore> make_gathered_weights(const ParameterArena& arena);
/// ZeRO-3: all-gathers the weights of a unit before they are used, one unit ahead. `device` and `communicator`: the
/// arena's, or others that only count.
std::unique_ptr<WeightStore> make_sharded_weights(const ParameterArena& arena, Device& device,
                                                  Communicator& communicator);
/// ZeRO-1 of GPUs that reach each other's weights: updates write all copies, and the ranks meet at the end.
std::unique_ptr<WeightStore> make_peer_weights(const ParameterArena& arena, const PeerInboxes& meeting);

}  // namespace ddptrain
