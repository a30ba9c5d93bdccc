#pragma once

#include <cstddef>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/ops/optimizers/optimizer.h"
#include "runtime/train/step/store/parameter_arena.h"

namespace ddptrain {

/// The trust ratios of an optimizer that needs norms of whole parameters (LAMB). The ranks add the sums of the chunks
/// that they update, and each rank makes all ratios of them, always in the same order. So the bits do not depend on the
/// number of ranks.
class TrustRatios {
 public:
  /// The arena outlives the object. Error if shards cut chunks, or if ranks split a parameter.
  explicit TrustRatios(const ParameterArena& arena);

  /// Finds the ratios of the update that is about to be made with the reduced gradients of all buckets, on the compute
  /// stream. `gradient_scale`: see UpdateSlice. `ranks`: see WeightStore::shard_ranks(); null: this rank updates all.
  /// Collective among `ranks`.
  void find(const OptimizerSettings& settings, const float* gradient_scale, StepRef step, Communicator* ranks);
  /// For UpdateSlice::trust_ratios: one per parameter of the arena, in memory of the device, after find() in its
  /// stream.
  const float* values() const { return static_cast<const float*>(ratios_.data()); }

  static std::size_t bytes(const ParameterArena& arena);  ///< Device memory.

 private:
  void add_squares(const OptimizerSettings& settings, const float* gradient_scale, StepRef step);
  void add_ranks(Communicator& ranks);
  UpdateSquares* squares() const { return static_cast<UpdateSquares*>(squares_.data()); }

  const ParameterArena& arena_;
  Device& device_;
  OptimizerOps& ops_;
  Buffer squares_;  ///< UpdateSquares by chunk, in the order of ParameterArena::first_square().
  Buffer ratios_;   ///< f32, by parameter.
};

}  // namespace ddptrain
