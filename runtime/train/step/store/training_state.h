#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/tensor_group.h"
#include "runtime/core/hash.h"
#include "runtime/device/device.h"
#include "runtime/train/model.h"
#include "runtime/train/step/store/parameter_arena.h"
#include "runtime/train/step/virtual_ranks.h"

namespace ddptrain {

/// All that a run must keep so that it can go on, bit by bit, where it stopped: the step, weights, master weights,
/// optimizer moments, and the model's buffers. What else changes from step to step (position in the data, learning
/// rate, dropout) follows from the step. The parameter hash, saved models and checkpoints are walks over it.
class TrainingState {
 public:
  /// Gives the buffers their initial values. `ranks`: each of these virtual ranks has buffers of its own, which are one
  /// array over all of them. The arena outlives the state.
  TrainingState(const ParameterArena& arena, const std::vector<BufferSpec>& buffers,
                std::optional<VirtualRanks> ranks = {});

  StepState* step() const { return static_cast<StepState*>(step_.data()); }  ///< On the device.
  std::vector<Tensor> buffers() const;                                       ///< What the model is bound to.
  /// The buffers of the `neighbour`th virtual rank of this rank come into buffers(), and go from there to where
  /// arrays() has them; in the order of the compute stream. Nothing where a rank is one.
  void take_up(std::int64_t neighbour);
  void put_away(std::int64_t neighbour);

  /// All arrays, of the same names and in the same order on every rank. Whoever copies values into them on a device
  /// that runs a Trainer tells it so: Trainer::restored().
  std::vector<StateArray> arrays() const;

  /// Shows the f32 master values of each parameter in turn. Waits. Collective where the arena is sharded.
  void visit_parameters(const std::function<void(const ParameterSpec&, const float*)>& show) const;
  /// Hash of names, shapes and f32 master values, 32 hexadecimal digits; the same for any bucket size. Waits.
  /// Collective where the arena is sharded.
  std::string parameter_hash() const;
  /// The same, for a hash of more than these. `group`: the ranks that split parameters; null: none are split.
  void add_parameters(Hash128& hash, TensorGroup* group = nullptr) const;

 private:
  const ParameterArena& arena_;
  bool several() const { return ranks_ && ranks_->count > 1; }
  std::vector<float> joined(const ParameterSpec& spec, const float* values, TensorGroup& group) const;
  char* buffer_of(std::size_t buffer, std::int64_t neighbour) const;
  StateArray array_of(std::size_t buffer) const;

  std::vector<BufferSpec> buffer_specs_;
  Device& device_;
  std::optional<VirtualRanks> ranks_;
  Buffer step_;  ///< StepState
  std::vector<Buffer> buffers_;
  std::vector<Buffer> put_away_;  ///< Of the virtual ranks of this rank, where these are several.
};

}  // namespace ddptrain
