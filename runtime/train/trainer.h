#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/train/dataset.h"
#include "runtime/train/distributed_sampler.h"
#include "runtime/train/gradient_reducer.h"
#include "runtime/train/gradient_tree.h"
#include "runtime/train/model.h"
#include "runtime/train/optimizer.h"
#include "runtime/train/parameter_arena.h"
#include "runtime/train/step_graph.h"
#include "runtime/train/training_state.h"
#include "runtime/train/virtual_ranks.h"

namespace ddptrain {

struct TrainerOptions {
  std::int64_t batch = 512;  ///< Samples per rank and micro-step.
  std::int64_t grad_accum = 1;
  std::int64_t virtual_ranks = 0;  ///< As which the ranks train, see VirtualRanks; 0: as what they are.
  std::uint64_t seed = 1;
  OptimizerSettings optimizer;
  float clip_norm = 0.0f;  ///< 0: no clipping.
  OnNonFinite on_nonfinite = OnNonFinite::stop;
  std::size_t bucket_bytes = std::size_t{25} << 20;
  std::size_t last_bucket_bytes = std::size_t{256} << 10;
  std::optional<DType> gradient_type = {};  ///< See ArenaOptions; bf16 beside f32 weights: as they are sent.
  bool zero = false;                        ///< ZeRO-1: ArenaOptions::shard_state.
  OverlapMode overlap = OverlapMode::on;
  bool fused_sum = true;  ///< See Optimizer.
  bool graph = true;
};

/// Steps that tell when their parts begin and end; as one graph where steps are graphs.
class TracedSteps {
 public:
  /// `work`: queues the steps. Where it is captured, it is so now. The device outlives this.
  TracedSteps(Device& device, bool graph, std::function<void()> work);
  /// Runs the steps once. Waits.
  std::vector<TimelineSpan> run();

 private:
  Device& device_;
  std::function<void()> work_;
  std::unique_ptr<Timeline> timeline_;
  std::unique_ptr<Graph> graph_;
};

/// How gradients are summed over ranks.
struct GradientPath {
  std::string name;  ///< none, mpi, plain, symmetric, symmetric+fused: the last bucket's sum and update as one; peers:
                     ///< sums, update and distribution in each other's memory; or tree.
  std::string text;  ///< The same for people, such as "NCCL symmetric + fused last bucket".
  std::string reason;  ///< Why it is not the fastest that this library has; empty where it is.
};

/// UsageError where the ranks cannot train as options.virtual_ranks.
VirtualRanks virtual_ranks(const TrainerOptions& options, int rank, int world_size);

/// How the parameters lie in memory.
ArenaOptions arena_options(const TrainerOptions& options);

/// What sums the gradients of options.virtual_ranks; empty without.
std::optional<GradientTree> make_tree(const TrainerOptions& options, const ParameterArena& arena, Device& device,
                                      Communicator& communicator);

/// Deals the training samples to ranks as `options` says. UsageError as the sampler's.
DistributedSampler make_sampler(const TrainerOptions& options, const Dataset& data, const World& world);

/// One replica of a model and what trains it on this rank's share of the data.
class Trainer {
 public:
  /// `data`: what `model` was bound to. Collective. All start with rank 0's parameters; Error where replicas differ
  /// nevertheless. World, device and communicator outlive the trainer.
  Trainer(const TrainerOptions& options, std::unique_ptr<Model> model, const Dataset& data, const World& world,
          Device& device, Communicator& communicator);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  const DistributedSampler& sampler() const { return sampler_; }
  const ParameterArena& arena() const { return arena_; }
  const GradientTree* tree() const { return tree_ ? &*tree_ : nullptr; }  ///< Null without virtual ranks.
  const TrainingState& state() const { return state_; }
  /// After values have been copied into state().arrays(): the next step starts from them. `sums`: what the virtual
  /// ranks of this rank (one without virtual ranks) had added up since take_training_sums(); empty: nothing.
  void restored(std::vector<MetricSums> sums = {});
  /// Of each virtual rank of this rank, since take_training_sums(). Waits.
  std::vector<MetricSums> running_sums() const { return read(training_sums()); }
  const Model& model() const { return *model_; }
  bool communicates() const { return reducer_.communicates(); }
  Model& model() { return *model_; }
  OnNonFinite on_nonfinite() const { return options_.on_nonfinite; }
  GradientPath gradient_path() const;

  /// Queues the next steps of training; does not wait. Collective.
  void run(std::uint64_t steps);
  /// Captures the step now where enough eager steps have been run. Collective.
  void prepare_graph() { training_.prepare(); }

  /// Sums over all ranks since the last call. Collective; waits.
  MetricSums take_training_sums();
  /// Remembers, in the order of the steps, what has been added up; does not wait.
  void mark_training_sums();
  /// Sums over all ranks since mark_training_sums(), with no take_training_sums() in between. Collective; waits.
  MetricSums sums_since_mark();
  /// Queues a copy of running_sums() to pinned memory, in the order of the steps. Waits for nothing.
  void copy_running_sums(MetricSums* pinned);
  std::size_t virtual_rank_count() const { return static_cast<std::size_t>(ranks_.count); }  ///< Of this rank.

  /// Of the whole gradient of the last step, before clipping; NaN or infinite where the gradient is. Collective; waits.
  double gradient_norm() { return optimizer_.gradient_norm(reducer_.communicates()); }
  /// Of the step that ends when `step` are done.
  double learning_rate(std::int64_t step) const {
    return options_.optimizer.schedule.at(static_cast<std::uint64_t>(step - 1));
  }
  /// See GradientReducer.
  double seconds_waited() const { return reducer_.seconds_waited(); }
  /// Every test sample exactly once, over all ranks together; the first `most` of them where that is not 0. Collective;
  /// waits.
  MetricSums evaluate(std::int64_t most = 0);

  /// When the parts of `steps` steps began and ended. A step must have been run before. Collective; waits.
  std::vector<TimelineSpan> trace(std::uint32_t steps);

  /// What calibrate() times; it spoils the state of training. The step; the step without communication, which may be
  /// run on some ranks only, with the whole device to itself or with what kernels leave to communication; and what a
  /// step sends, alone.
  StepGraph& training_steps() { return training_; }
  StepGraph make_silent_steps(bool whole_device);
  StepGraph make_communication_steps();
  /// Whether sums over the network go on beneath the next forward pass, on the cores that compute.
  bool computes_beside_sums() const { return reducer_.goes_on(); }
  TracedSteps make_traced_steps(std::uint32_t steps, bool communicates);
  /// What profile_step() times besides, without communication and updates: forward, or forward and backward. And the
  /// whole step launched kernel by kernel.
  StepGraph make_pass_steps(bool backward);
  StepGraph make_eager_steps();

 private:
  /// Of the `neighbour`th virtual rank of this rank.
  Slice training_slice(std::int64_t neighbour, std::int64_t micro_step, std::uint32_t offset) const;
  void train_step(GradientReducer& reducer, std::uint32_t offset);
  void forward(const Slice& slice, float gradient_scale, MetricSums* sums);
  void take_up(std::int64_t neighbour);
  void communicate(StepRef step);
  Communicator::Ticket sum_by_tree(std::size_t bucket, Stream stream);
  /// One for each virtual rank of this rank.
  MetricSums* training_sums() const { return static_cast<MetricSums*>(sums_.data()); }
  MetricSums* evaluation_sums() const { return training_sums() + ranks_.count; }
  /// To which a step adds: those of training, or, where it may be left out, its own.
  MetricSums* step_sums() const { return may_skip() ? training_sums() + 2 * ranks_.count : training_sums(); }
  bool may_skip() const { return on_nonfinite() == OnNonFinite::skip; }
  MetricSums* marked_sums() const { return training_sums() + 3 * ranks_.count; }
  std::size_t sums_bytes() const { return virtual_rank_count() * sizeof(MetricSums); }
  MetricSums take(MetricSums* sums);
  std::vector<MetricSums> read(const MetricSums* sums) const;
  MetricSums total(const std::vector<MetricSums>& mine) const;
  void evaluate(const EvaluationShard& shard, MetricSums* sums);
  GradientPath tree_path() const;
  GradientTree* tree() { return tree_ ? &*tree_ : nullptr; }
  OverlapMode overlap() const;
  GradientReducer::Reduced on_reduced();
  GradientReducer::Reduced on_last_bucket();

  TrainerOptions options_;
  const World& world_;
  Device& device_;
  Communicator& communicator_;
  std::int64_t test_count_;
  VirtualRanks ranks_;
  DistributedSampler sampler_;
  std::unique_ptr<Model> model_;
  float gradient_scale_;
  ParameterArena arena_;
  TrainingState state_;
  std::optional<GradientTree> tree_;  ///< Of virtual ranks.
  Optimizer optimizer_;
  GradientReducer reducer_;
  GradientReducer silent_reducer_;  ///< Never communicates.
  bool buffers_used_ = false;       ///< By every virtual rank of this rank.
  Buffer sums_;                     ///< MetricSums of training, of evaluation, of a step, and those marked
  StepGraph training_;
};

}  // namespace ddptrain
