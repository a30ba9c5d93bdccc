#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/train/dataset.h"
#include "runtime/train/distributed_sampler.h"
#include "runtime/train/gradient_reducer.h"
#include "runtime/train/model.h"
#include "runtime/train/optimizer.h"
#include "runtime/train/parameter_arena.h"
#include "runtime/train/step_graph.h"
#include "runtime/train/training_state.h"

namespace ddptrain {

struct TrainerOptions {
  std::int64_t batch = 512;  ///< Samples per rank and micro-step.
  std::int64_t grad_accum = 1;
  std::uint64_t seed = 1;
  OptimizerSettings optimizer;
  float clip_norm = 0.0f;  ///< 0: no clipping.
  std::size_t bucket_bytes = std::size_t{25} << 20;
  std::size_t last_bucket_bytes = std::size_t{256} << 10;
  std::optional<DType> gradient_type = {};  ///< See ArenaOptions.
  bool zero = false;                        ///< ZeRO-1: ArenaOptions::shard_state.
  OverlapMode overlap = OverlapMode::on;
  bool fused_sum = true;  ///< See Optimizer.
  bool graph = true;
};

/// How gradients are summed over ranks.
struct GradientPath {
  std::string name;    ///< none, mpi, plain, symmetric, or symmetric+fused: the last bucket's sum and update as one.
  std::string text;    ///< The same for people, such as "NCCL symmetric + fused last bucket".
  std::string reason;  ///< Why it is not the fastest that this library has; empty where it is.
};

/// How the parameters lie in memory.
ArenaOptions arena_options(const TrainerOptions& options);

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
  const TrainingState& state() const { return state_; }
  /// After values have been copied into state().arrays(): the next step starts from them. `sums`: what this rank had
  /// added up since take_training_sums().
  void restored(const MetricSums& sums = {});
  /// Of this rank, since take_training_sums(). Waits.
  MetricSums running_sums() const;
  const Model& model() const { return *model_; }
  bool communicates() const { return reducer_.communicates(); }
  Model& model() { return *model_; }
  GradientPath gradient_path() const;

  /// Queues the next steps of training; does not wait. Collective.
  void run(std::uint64_t steps) { training_.run(steps); }
  /// Captures the step now where enough eager steps have been run. Collective.
  void prepare_graph() { training_.prepare(); }

  /// Sums over all ranks since the last call. Collective; waits.
  MetricSums take_training_sums();
  /// Every test sample exactly once, over all ranks together; the first `most` of them where that is not 0. Collective;
  /// waits.
  MetricSums evaluate(std::int64_t most = 0);

  /// Runs `steps` steps, as one graph where steps are graphs, and tells when its parts began and ended. A step must
  /// have been run before. Collective; waits.
  std::vector<TimelineSpan> trace(std::uint32_t steps);

  /// What calibrate() times; it spoils the state of training. The step; the step without communication, which may be
  /// run on some ranks only; and the communication of a step alone.
  StepGraph& training_steps() { return training_; }
  StepGraph make_silent_steps();
  StepGraph make_communication_steps();
  /// What profile_step() times besides, without communication and updates: forward, or forward and backward. And the
  /// whole step launched kernel by kernel.
  StepGraph make_pass_steps(bool backward);
  StepGraph make_eager_steps();

 private:
  Slice training_slice(std::int64_t micro_step, std::uint32_t offset) const;
  void train_step(GradientReducer& reducer, std::uint32_t offset);
  void communicate();
  MetricSums* training_sums() const { return static_cast<MetricSums*>(sums_.data()); }
  MetricSums* evaluation_sums() const { return training_sums() + 1; }
  MetricSums take(MetricSums* sums);
  GradientReducer::Reduced on_reduced();
  GradientReducer::Reduced on_last_bucket();

  TrainerOptions options_;
  const World& world_;
  Device& device_;
  Communicator& communicator_;
  std::int64_t test_count_;
  DistributedSampler sampler_;
  std::unique_ptr<Model> model_;
  float gradient_scale_;
  ParameterArena arena_;
  TrainingState state_;
  Optimizer optimizer_;
  GradientReducer reducer_;
  GradientReducer silent_reducer_;  ///< Never communicates.
  Buffer sums_;                     ///< MetricSums of training and of evaluation
  StepGraph training_;
};

}  // namespace ddptrain
