#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/train/dataset.h"
#include "runtime/train/model.h"
#include "runtime/train/step/distributed_sampler.h"
#include "runtime/train/step/gradient_reducer.h"
#include "runtime/train/step/metric_buffers.h"
#include "runtime/train/step/optimizer.h"
#include "runtime/train/step/pipeline.h"
#include "runtime/train/step/schedule.h"
#include "runtime/train/step/step_communication.h"
#include "runtime/train/step/step_graph.h"
#include "runtime/train/step/store/parameter_arena.h"
#include "runtime/train/step/store/training_state.h"
#include "runtime/train/step/trainer_options.h"
#include "runtime/train/step/virtual_ranks.h"

namespace ddptrain {

/// One replica of a model, or a stage of one, and what trains it on this rank's share of the data.
class Trainer {
 public:
  /// `data`: what `model` was bound to. `world` and `communicator`: the ranks with replicas of this model. `stages`:
  /// those with the rest of this replica; with several stages the model has siblings. Collective. All start with rank
  /// 0's parameters; Error if replicas differ nevertheless. What is referred to outlives the trainer.
  Trainer(const TrainerOptions& options, std::unique_ptr<Model> model, const Dataset& data, const World& world,
          Device& device, Communicator& communicator, const Stages& stages = {});
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  Device& device() const { return device_; }
  const DistributedSampler& sampler() const { return sampler_; }
  const ParameterArena& arena() const { return arena_; }
  const TrainingState& state() const { return state_; }
  const Model& model() const { return *models_.front(); }
  Model& model() { return *models_.front(); }
  const World& replicas() const { return world_; }
  /// Of the whole model: see TrainingState. Collective; waits.
  std::string parameter_hash() const;
  /// Host time spent with the other ranks of the replica, in all: on GPUs nothing.
  ReplicaSeconds seconds_in_replica() const { return pipeline_.seconds(); }
  const Stages& stages() const { return pipeline_.stages(); }
  MetricBuffers& metrics() { return metrics_; }
  const MetricBuffers& metrics() const { return metrics_; }
  const GradientPath& gradient_path() const { return communication_.path; }
  std::size_t tree_bytes() const { return communication_.tree_bytes(); }
  bool communicates() const { return reducer_.communicates(); }
  OnNonFinite on_nonfinite() const { return options_.on_nonfinite; }
  /// Of the step that ends when `step` are done.
  double learning_rate(std::int64_t step) const {
    return options_.optimizer.schedule.at(static_cast<std::uint64_t>(step - 1));
  }

  /// After values have been copied into state().arrays(): the next step starts from them. `sums`: see
  /// MetricBuffers::set_training().
  void restored(std::vector<MetricSums> sums = {});
  /// Queues the next steps of training; does not wait. Collective.
  void run(std::uint64_t steps);
  /// Captures the step now if enough eager steps have been run. Collective.
  void prepare_graph() { training_.prepare(); }
  /// Every test sample exactly once, over all ranks together; the first `most` of them if that is not 0. Collective;
  /// waits.
  MetricSums evaluate(std::int64_t most = 0);
  /// The training sums since the last call; see MetricBuffers. Collective; wait.
  MetricSums take_training() { return from_last_stage(metrics_.take_training()); }
  MetricSums since_mark() { return from_last_stage(metrics_.since_mark()); }
  /// Of the whole gradient of the last step, before clipping; NaN or infinite if the gradient is. Collective; waits.
  double gradient_norm();
  /// See GradientReducer.
  double seconds_waited() const { return reducer_.seconds_waited() + communication_.weights->seconds_waited(); }

  /// For measurements, which spoil the state of training. The steps of training, and what queues one of them; without
  /// communication, some ranks alone may run it. The communication of a step by itself (with the update, if the update
  /// sends).
  StepGraph& training_steps() { return training_; }
  StepGraph::Step step(bool communicates);
  StepGraph make_communication_steps();
  /// As graphs if the steps of training are graphs.
  StepGraph make_steps(StepGraph::Step step, std::uint32_t eager_steps = 0);
  bool uses_graphs() const { return options_.graph; }
  /// Whether all-reduces go on under the next forward pass, on the cores that compute.
  bool computes_beside_sums() const { return reducer_.goes_on(); }

 private:
  /// One pass forward and backward: the `micro`th micro-step of the `virtual_rank`th virtual rank of this rank.
  struct Pass {
    std::int64_t number = 0;
    std::int64_t virtual_rank = 0;
    std::int64_t micro = 0;
    bool ends_virtual_rank = false;
    bool ends_step = false;
  };

  std::vector<Pass> passes() const;
  /// `gradient_scale`: see MicroBatch.
  MicroBatch micro_batch(const Pass& pass, std::uint32_t offset, float gradient_scale);
  Model& model_of(std::int64_t pass) { return *models_[static_cast<std::size_t>(pass) % models_.size()]; }
  MetricSums from_last_stage(MetricSums sums) const;
  void train_step(GradientReducer& reducer, WeightStore& weights, std::uint32_t offset);
  void forward(const Pass& pass, WeightStore& weights, std::uint32_t offset);
  void train_backward(const Pass& pass, GradientReducer& reducer, WeightStore& weights, std::uint32_t offset);
  void exchange(const Exchange& messages, std::uint32_t offset);
  void forward(Model& model, const MicroBatch& batch, WeightStore& weights);
  void wait_for_weights(const Unit& unit);
  void backward(const Pass& pass, GradientReducer& reducer, WeightStore& weights);
  void claim_gradients(std::size_t unit, GradientReducer& reducer);
  void communicate(const Pass& pass, GradientReducer& reducer, WeightStore& weights);
  void take_up(std::int64_t virtual_rank);
  void put_away(const Pass& pass);
  /// `batches`: of the largest shard; all ranks acquire weights as often.
  void evaluate(const EvaluationShard& shard, std::size_t batches, MetricSums* sums);
  OverlapMode overlap() const;
  GradientSync::Reduced update_bucket();

  TrainerOptions options_;
  const World& world_;
  Device& device_;
  Pipeline pipeline_;
  std::int64_t test_count_;
  VirtualRanks ranks_;
  DistributedSampler sampler_;
  std::vector<Pass> passes_;                    ///< Of a step.
  std::vector<Action> schedule_;                ///< Of a step.
  std::vector<std::unique_ptr<Model>> models_;  ///< Siblings: passes in flight take them in turn.
  std::vector<Unit> units_;                     ///< Of a model.
  std::vector<std::vector<std::size_t>> unit_buckets_;
  float gradient_scale_;
  ParameterArena arena_;
  TrainingState state_;
  Optimizer optimizer_;
  StepCommunication communication_;
  GradientReducer reducer_;
  GradientReducer silent_reducer_;  ///< Never communicates.
  bool buffers_used_ = false;       ///< By every virtual rank of this rank.
  MetricBuffers metrics_;
  StepGraph training_;
};

}  // namespace ddptrain
