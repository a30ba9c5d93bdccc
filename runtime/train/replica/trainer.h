#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/train/dataset.h"
#include "runtime/train/model.h"
#include "runtime/train/replica/evaluator.h"
#include "runtime/train/replica/replica.h"
#include "runtime/train/replica/updates.h"
#include "runtime/train/step/distributed_sampler.h"
#include "runtime/train/step/gradient_reducer.h"
#include "runtime/train/step/metric_buffers.h"
#include "runtime/train/step/pipeline.h"
#include "runtime/train/step/step_graph.h"
#include "runtime/train/step/step_order.h"
#include "runtime/train/step/step_recorder.h"
#include "runtime/train/step/trainer_options.h"

namespace ddptrain {

/// Trains this rank's replica of a model, or its stage of a replica, on this rank's share of the data.
class Trainer {
 public:
  /// `data` is the data set of `model`. `replicas` and `communicator` connect the ranks with replicas of this model,
  /// and `stages` the ranks with the other stages and parts of this replica. With several stages, the model must
  /// support sibling(). All replicas start with rank 0's parameters; Error if they differ nevertheless. References
  /// outlive the trainer. Collective.
  Trainer(const TrainerOptions& options, std::unique_ptr<Model> model, const Dataset& data, const World& replicas,
          Device& device, Communicator& communicator, const Stages& stages = {});
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  const TrainerOptions& options() const {
    return options_;
  }  ///< Without graphs if the communicators do not allow them.
  Device& device() const { return device_; }
  const DistributedSampler& sampler() const { return sampler_; }
  const Replica& replica() const { return replica_; }
  const ParameterArena& arena() const { return replica_.arena(); }
  const TrainingState& state() const { return replica_.state(); }
  const Model& model() const { return replica_.model(); }
  Model& model() { return replica_.model(); }
  const World& replicas() const { return replicas_; }
  const Stages& stages() const { return replica_.stages(); }
  MetricBuffers& metrics() { return metrics_; }
  const MetricBuffers& metrics() const { return metrics_; }
  /// The hash of the whole model's parameters: see TrainingState. Collective; waits.
  std::string parameter_hash() const { return replica_.parameter_hash(); }
  /// How long the host has spent in exchanges with other ranks of the replica. Replays of a graph
  /// take no time of the host.
  ReplicaSeconds seconds_in_replica() const { return replica_.pipeline().seconds(); }
  const GradientPath& gradient_path() const { return updates_.communication.path; }
  std::size_t tree_bytes() const { return updates_.communication.tree_bytes(); }
  bool communicates() const { return reducer_.communicates(); }
  /// Whether reductions overlap with the next forward pass and use the cores that compute it.
  bool overlaps_next_forward() const { return reducer_.overlaps_next_forward(); }
  /// Whether reductions of the last step that is queued are not done yet.
  bool has_sums_on_their_way() const { return reducer_.has_sums_on_their_way(); }
  /// Whether all replicas have the same parameters. With OverlapMode::none each trains on its own.
  bool replicas_agree() const { return communicates() || replicas_.size() == 1; }
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
  /// The steps that run() queues.
  StepGraph& training_steps() { return training_; }
  /// See Evaluator. Collective; waits.
  MetricSums evaluate(std::int64_t most = 0) { return evaluator_.evaluate(most); }
  /// Logs each `every`th step from now on. Call it between steps, after restored(). Waits.
  StepRecorder& log_steps(std::int64_t every) { return recorder_.emplace(every, metrics_, state().step(), device_); }
  /// Whether logged steps include the norm. Otherwise log_gradient_norm() adds it to the newest step, if it is logged.
  bool logs_gradient_norm() const { return !updates_.optimizer.updates_at_once(); }
  void log_gradient_norm();  ///< complete_gradients() comes first. Does not wait on GPUs. Collective.
  /// The sums of the newest step's gradients are complete. Waits on CPUs. Collective.
  void complete_gradients();
  /// The totals of several states of the training sums, each the sums of MetricBuffers::training(). Collective; does
  /// not wait for the device.
  std::vector<MetricSums> training_totals(const std::vector<MetricSums>& mine);
  /// Training sums since the last call: see MetricBuffers. Collective; waits.
  MetricSums take_training() { return replica_.from_last_stage(metrics_.take_training()); }
  MetricSums since_mark() { return replica_.from_last_stage(metrics_.since_mark()); }
  /// The norm of the last step's whole gradient before clipping. NaN or infinite if the gradient is. Collective; waits.
  double gradient_norm();
  /// How long the host has waited for gradients and weights of other replicas.
  double seconds_waited() const { return reducer_.seconds_waited() + updates_.communication.weights->seconds_waited(); }

  // The parts of a step, from which MeasuredSteps makes others.
  const StepOrder& order() const { return order_; }
  Updates& updates() { return updates_; }
  OverlapMode overlap_mode() const { return reducer_.mode(); }
  /// Queues step number state().step()->step + `offset`. Collective.
  void train_step(std::uint32_t offset) { train_step(reducer_, *updates_.communication.weights, offset); }
  /// The same, with another reducer of the same arena, and weights that another store distributes.
  void train_step(GradientReducer& reducer, WeightStore& weights, std::uint32_t offset);
  MicroBatch micro_batch(const Pass& pass, std::uint32_t offset);

 private:
  void exchange(const Exchange& messages, std::uint32_t offset);
  void forward(const Pass& pass, WeightStore& weights, std::uint32_t offset);
  void wait_for_weights(const Unit& unit);
  void train_backward(const Pass& pass, GradientReducer& reducer, WeightStore& weights, std::uint32_t offset);
  void backward(const Pass& pass, GradientReducer& reducer, WeightStore& weights);
  void end_virtual_rank(const Pass& pass);
  OverlapMode chosen_overlap() const;
  bool collectives_overlap() const;

  TrainerOptions options_;
  const World& replicas_;
  Device& device_;
  DistributedSampler sampler_;
  Replica replica_;
  StepOrder order_;
  float gradient_scale_;
  Updates updates_;
  GradientReducer reducer_;
  MetricBuffers metrics_;
  Evaluator evaluator_;
  std::optional<StepRecorder> recorder_;
  StepGraph training_;
};

}  // namespace ddptrain
