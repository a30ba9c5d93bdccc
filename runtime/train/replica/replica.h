#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/core/step.h"
#include "runtime/device/device.h"
#include "runtime/train/model.h"
#include "runtime/train/step/pipeline.h"
#include "runtime/train/step/store/parameter_arena.h"
#include "runtime/train/step/store/training_state.h"
#include "runtime/train/step/store/virtual_ranks.h"
#include "runtime/train/step/trainer_options.h"

namespace ddptrain {

enum class ReplicaUse : std::uint8_t {
  training,
  evaluation,  ///< Keeps no optimizer state, divides nothing, and has no virtual ranks.
};

/// This rank's replica of a model, or its stage of one: the model, the memory of its parameters, and the state of
/// training. Nothing else puts these three together. Training, --evaluate, and on a meta device --describe and
/// --dry-run begin with a replica.
class Replica {
 public:
  /// `communicator` connects the ranks with replicas of this model, and `stages` the ranks with the other stages and
  /// slices of this replica. With several stages, the model must support sibling(). UsageError if the ranks cannot
  /// train as options.virtual_ranks. References outlive the replica. Collective.
  Replica(const TrainerOptions& options, ReplicaUse use, std::unique_ptr<Model> model, Device& device,
          Communicator& communicator, const Stages& stages = {});
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  /// Binds the model to its memory, and sets parameters to the initial values of rank 0; `rank` is this rank among
  /// those with replicas of the model. A replica that is only described needs none of this. Collective; waits.
  void initialise(std::uint64_t seed, int rank);
  /// Binds another model with the same parameters to the weights. It has no buffers, and does not train.
  void lend_weights(Model& model) const;
  /// Call it after values have been copied into state().arrays().
  void restored();

  Device& device() const { return arena_.device(); }
  const ParameterArena& arena() const { return arena_; }
  const TrainingState& state() const { return state_; }
  const VirtualRanks& ranks() const { return ranks_; }
  Pipeline& pipeline() { return pipeline_; }
  const Pipeline& pipeline() const { return pipeline_; }
  const Stages& stages() const { return pipeline_.stages(); }
  Model& model() { return *models_.front(); }
  const Model& model() const { return *models_.front(); }
  /// The model of pass number `pass` of a step: passes in flight use siblings in turn.
  Model& model_of(std::int64_t pass) { return *models_[static_cast<std::size_t>(pass) % models_.size()]; }

  // The model's buffers if this rank has several virtual ranks; otherwise these do nothing.
  /// Loads the buffers of this rank's virtual rank `i` before a pass of it.
  void load_buffers(std::int64_t i);
  void save_buffers(std::int64_t i);
  /// Loads the first virtual rank's buffers, after every virtual rank has used the model.
  void rewind_buffers();

  /// The hash of the whole model's parameters: see TrainingState. Collective; waits.
  std::string parameter_hash() const;
  /// The last stage's sums. Collective over the stages.
  MetricSums from_last_stage(MetricSums sums) const;

 private:
  Pipeline pipeline_;
  VirtualRanks ranks_;
  std::vector<std::unique_ptr<Model>> models_;  ///< Siblings.
  ParameterArena arena_;
  TrainingState state_;
  bool buffers_used_ = false;  ///< Every virtual rank of this rank has used the model's buffers.
};

}  // namespace ddptrain
