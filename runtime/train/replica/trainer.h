#pragma once

#include <cstdint>
#include <memory>
#include <optional>
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
#include "runtime/train/step/pipeline_schedule.h"
#include "runtime/train/step/step_communication.h"
#include "runtime/train/step/step_graph.h"
#include "runtime/train/step/step_recorder.h"
#include "runtime/train/step/store/parameter_arena.h"
#include "runtime/train/step/store/training_state.h"
#include "runtime/train/step/store/virtual_ranks.h"
#include "runtime/train/step/trainer_options.h"

namespace ddptrain {

/// Trains this rank's replica of a model, or its stage of a replica, on this rank's share of the data.
class Trainer {
 public:
  /// `data` is the data set of `model`. `world` and `communicator` connect the ranks with replicas of this model, and
  /// `stages` the ranks with the other stages and parts of this replica. With several stages, the model must support
  /// sibling(). All replicas start with rank 0's parameters; Error if they differ nevertheless. References outlive the
  /// trainer. Collective.
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
  /// The hash of the whole model's parameters: see TrainingState. Collective; waits.
  std::string parameter_hash() const;
  /// How long the host has spent in exchanges with other ranks of the replica. Replays of a graph
  /// take no time of the host.
  ReplicaSeconds seconds_in_replica() const { return pipeline_.seconds(); }
  const Stages& stages() const { return pipeline_.stages(); }
  MetricBuffers& metrics() { return metrics_; }
  const MetricBuffers& metrics() const { return metrics_; }
  const GradientPath& gradient_path() const { return communication_.path; }
  std::size_t tree_bytes() const { return communication_.tree_bytes(); }
  bool communicates() const { return reducer_.communicates(); }
  /// Whether all replicas have the same parameters. With OverlapMode::none each trains on its own.
  bool replicas_agree() const { return communicates() || world_.size() == 1; }
  OnNonFinite on_nonfinite() const { return options_.on_nonfinite; }
  /// The learning rate of step number `step`, counted from 1.
  double learning_rate(std::int64_t step) const {
    return options_.optimizer.schedule.at(static_cast<std::uint64_t>(step - 1));
  }

  /// Call it after values have been copied into state().arrays(). The next step starts from them. For `sums` see
  /// MetricBuffers::set_training().
  void restored(std::vector<MetricSums> sums = {});
  /// Queues the next training steps. Does not wait. Collective.
  void run(std::uint64_t steps);
  /// See StepGraph::prepare(). Collective.
  void prepare_graph(bool several) { training_.prepare(several); }
  /// Evaluates each test sample once; all ranks share the work. `most`: only the first samples; 0: all. Collective;
  /// waits.
  MetricSums evaluate(std::int64_t most = 0);
  /// Training sums since the last call: see MetricBuffers. Collective; waits.
  /// Logs each `every`th step from now on. Call it between steps, after restored(). Waits.
  StepRecorder& log_steps(std::int64_t every) { return recorder_.emplace(every, metrics_, state_.step(), device_); }
  /// Whether logged steps include the norm. Otherwise log_gradient_norm() adds it to the newest step, if it is logged.
  bool logs_gradient_norm() const { return !optimizer_.updates_at_once(); }
  void log_gradient_norm();  ///< complete_gradients() comes first. Does not wait on GPUs. Collective.
  /// The sums of the newest step's gradients are complete. Waits on CPUs. Collective.
  void complete_gradients();
  /// The totals of several states of the training sums, each the sums of MetricBuffers::training(). Collective; does
  /// not wait for the device.
  std::vector<MetricSums> training_totals(const std::vector<MetricSums>& mine);
  MetricSums take_training() { return from_last_stage(metrics_.take_training()); }
  MetricSums since_mark() { return from_last_stage(metrics_.since_mark()); }
  /// The norm of the last step's whole gradient before clipping. NaN or infinite if the gradient is. Collective; waits.
  double gradient_norm();
  /// How long the host has waited for gradients and weights of other replicas.
  double seconds_waited() const { return reducer_.seconds_waited() + communication_.weights->seconds_waited(); }

  // For measurements. These steps change parameters, so training cannot go on afterwards.
  StepGraph& training_steps() { return training_; }
  /// Queues one step. A step without communication may run on some ranks only.
  StepGraph::Step step(bool communicates);
  /// Steps that only communicate. If the update itself sends weights, they include the update.
  StepGraph make_communication_steps();
  /// Makes steps that use graphs if training does.
  StepGraph make_steps(StepGraph::Step step, std::uint32_t eager_steps = 0);
  bool uses_graphs() const { return options_.graph; }
  /// Whether all-reduces overlap with the next forward pass and use the cores that compute it.
  bool computes_beside_sums() const { return reducer_.goes_on(); }

 private:
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
  /// `batches` is the number of batches of the largest shard. All ranks acquire weights that often.
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
  std::vector<Pass> passes_;                    ///< The passes of a step.
  std::vector<Action> schedule_;                ///< The actions of a step.
  std::vector<std::unique_ptr<Model>> models_;  ///< Siblings. Passes in flight use them in turn.
  std::vector<Unit> units_;
  std::vector<std::vector<std::size_t>> unit_buckets_;
  float gradient_scale_;
  ParameterArena arena_;
  TrainingState state_;
  Optimizer optimizer_;
  StepCommunication communication_;
  GradientReducer reducer_;
  GradientReducer silent_reducer_;  ///< Never communicates.
  bool buffers_used_ = false;       ///< Every virtual rank of this rank has used the model's buffers.
  MetricBuffers metrics_;
  std::optional<StepRecorder> recorder_;
  StepGraph training_;
};

}  // namespace ddptrain
