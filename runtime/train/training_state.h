#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/train/model.h"
#include "runtime/train/parameter_arena.h"

namespace ddptrain {

/// All that a run must keep so that it can go on, bit by bit, where it stopped: the step, weights, master weights,
/// optimizer moments, and the model's buffers. What else changes from step to step (position in the data, learning
/// rate, dropout) follows from the step. The parameter hash, saved models and checkpoints are walks over it.
class TrainingState {
 public:
  /// Gives the buffers their initial values. Arena and device outlive the state.
  TrainingState(const ParameterArena& arena, const std::vector<BufferSpec>& buffers, Device& device);

  StepState* step() const { return static_cast<StepState*>(step_.data()); }  ///< On the device.
  std::vector<Tensor> buffers() const;

  /// All arrays, of the same names and in the same order on every rank. Whoever copies values into them on a device
  /// that runs a Trainer tells it so: Trainer::restored().
  std::vector<StateArray> arrays() const;

  /// Shows the f32 master values of each parameter in turn. Waits. Collective where the arena is sharded.
  void visit_parameters(const std::function<void(const ParameterSpec&, const float*)>& show) const;
  /// Hash of names, shapes and f32 master values, 32 hexadecimal digits; the same for any bucket size. Waits.
  /// Collective where the arena is sharded.
  std::string parameter_hash() const;

 private:
  const ParameterArena& arena_;
  std::vector<BufferSpec> buffer_specs_;
  Buffer step_;  ///< StepState
  std::vector<Buffer> buffers_;
};

}  // namespace ddptrain
