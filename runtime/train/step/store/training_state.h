#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/tensor_group.h"
#include "runtime/core/hash.h"
#include "runtime/device/device.h"
#include "runtime/train/model.h"
#include "runtime/train/step/store/parameter_arena.h"
#include "runtime/train/step/store/virtual_ranks.h"

namespace ddptrain {

/// The state that a run needs to continue with the same bits: the step, weights, master weights, optimizer moments, and
/// the model's buffers. Position in the data, learning rate and dropout follow from the step. The parameter hash, saved
/// models and checkpoints all read this state.
class TrainingState {
 public:
  /// Sets the buffers to their initial values. With `ranks`, each virtual rank has buffers, and arrays() has one array
  /// for all of them. The arena outlives the state.
  TrainingState(const ParameterArena& arena, const std::vector<BufferSpec>& buffers,
                std::optional<VirtualRanks> ranks = {});

  StepState* step() const { return static_cast<StepState*>(step_.data()); }  ///< In device memory.
  std::vector<Tensor> buffers() const;                                       ///< The memory that the model is bound to.
  /// load_buffers() copies the buffers of this rank's virtual rank `local_index` into buffers(), and save_buffers()
  /// copies them back, in the order of the compute stream. Both do nothing if this rank has one virtual rank.
  void load_buffers(std::int64_t local_index);
  void save_buffers(std::int64_t local_index);

  /// All arrays, with the same names and in the same order on every rank. After values have been copied into them, call
  /// Trainer::restored().
  std::vector<StateArray> arrays() const;

  /// Called with f32 master values of a parameter from element `begin` on.
  using Visit = std::function<void(const ParameterSpec&, std::int64_t begin, std::span<const float> values)>;
  /// Shows the master values of all parameters piece by piece, parameter by parameter, so that the host never has all
  /// of a parameter. Waits. Collective if the arena is sharded.
  void visit_parameters(const Visit& show) const;
  /// Hash of names, shapes and f32 master values, as 32 hexadecimal digits. It does not depend on buckets. Waits.
  /// Collective if the arena is sharded.
  std::string parameter_hash() const;
  /// Adds the same to a larger hash. `group` has the ranks that split parameters; null: none are split.
  void add_parameters(Hash128& hash, TensorGroup* group = nullptr) const;

 private:
  const ParameterArena& arena_;
  bool several() const { return ranks_ && ranks_->count > 1; }
  void add_split(Hash128& hash, const ParameterSpec& spec, std::span<const float> slice, TensorGroup& group) const;
  char* buffer_of(std::size_t buffer, std::int64_t local_index) const;
  StateArray array_of(std::size_t buffer) const;

  std::vector<BufferSpec> buffer_specs_;
  Device& device_;
  std::optional<VirtualRanks> ranks_;
  Buffer step_;  ///< StepState
  std::vector<Buffer> buffers_;
  std::vector<Buffer> saved_buffers_;  ///< The buffers of this rank's virtual ranks, if it has several.
};

}  // namespace ddptrain
