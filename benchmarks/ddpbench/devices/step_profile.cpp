#include "benchmarks/ddpbench/devices/step_profile.h"

#include <optional>
#include <vector>

#include "runtime/train/measure/estimate.h"
#include "runtime/train/measure/measured_steps.h"
#include "runtime/train/measure/step_window.h"

namespace ddptrain::bench {
namespace {

constexpr int kRounds = 5;

/// A sequence of work that is measured once in every round.
class Series {
 public:
  explicit Series(StepGraph& graph) : graph_(graph) {}

  StepGraph& graph() const { return graph_; }
  void add(double slowest, double mean) {
    slowest_.push_back(slowest);
    mean_.push_back(mean);
  }
  double slowest() const { return median(slowest_); }  ///< Seconds per step of the slowest rank.
  double mean() const { return median(mean_); }        ///< The same over the ranks.

 private:
  StepGraph& graph_;
  std::vector<double> slowest_;
  std::vector<double> mean_;
};

/// Measures all series in their order, round by round, and returns the number of rounds. The first series sets how many
/// steps a window has.
int measure(const std::vector<Series*>& all, const World& world, Device& device, double min_seconds) {
  const bool gpu = device.kind() == DeviceKind::cuda;
  for (const Series* series : all) {  // eager steps, capture and the graphs' first launch: not counted
    if (gpu) time_window(series->graph(), 2 * kUnroll + 1, world, device);
  }
  const std::uint64_t probe = gpu ? kUnroll : 1;
  const double step =
      world.max(time_window(all.front()->graph(), probe, world, device).seconds) / static_cast<double>(probe);
  const std::uint64_t steps = steps_per_window(gpu ? 0.02 : 0.1, step);
  int round = 0;
  for (double timed = 0.0; round < kRounds || timed < min_seconds; ++round) {
    for (Series* series : all) {
      const double mine = time_window(series->graph(), steps, world, device).seconds / static_cast<double>(steps);
      const double slowest = world.max(mine);
      series->add(slowest, world.sum(mine) / world.size());
      if (series == all.front()) timed += slowest * static_cast<double>(steps);
    }
  }
  return round;
}

/// Forward, or forward and backward, of all passes of a step, without communication and updates.
StepGraph pass_steps(Trainer& trainer, const MeasuredSteps& steps, bool backward) {
  return steps.graph_of([&trainer, backward](std::uint32_t offset) {
    for (const Pass& pass : trainer.order().passes) {
      MicroBatch batch = trainer.micro_batch(pass, offset);
      if (!backward) batch.gradient_scale = 0.0f;
      run_forward(trainer.model(), batch);
      if (backward) run_backward(trainer.model(), pass.micro > 0, [](std::size_t) {});
    }
  });
}

}  // namespace

StepTimes step_times_of(const TimedPasses& timed) {
  StepTimes result;
  result.step = timed.step;
  result.eager_step = timed.eager_step;
  result.data = timed.data;
  result.forward = timed.forward - timed.data;
  result.backward = timed.forward_and_backward - timed.forward;
  result.optimizer = timed.compute_step - timed.forward_and_backward;
  result.exposed_communication = timed.step - timed.compute_step;
  result.stragglers = timed.compute_step - timed.compute_step_mean;
  result.communication = timed.communication;
  return result;
}

StepTimes profile_step(const World& job, Trainer& trainer, StepGraph* data_steps, Device& device, double min_seconds) {
  MeasuredSteps steps(trainer);
  StepGraph eager_steps(device, trainer.state().step(), steps.step(), {.enabled = false});
  StepGraph forward_steps = pass_steps(trainer, steps, false);
  StepGraph both_steps = pass_steps(trainer, steps, true);
  StepGraph compute_steps = steps.graph_of(steps.step_without_communication());
  StepGraph communication_steps = steps.graph_of(steps.communication());
  Series step(trainer.training_steps()), eager(eager_steps), forward(forward_steps), passes(both_steps);
  Series compute(compute_steps), communication(communication_steps);
  std::optional<Series> data;
  if (data_steps != nullptr) data.emplace(*data_steps);
  std::vector<Series*> all = {&step, &eager, &forward, &passes, &compute, &communication};
  if (data) all.push_back(&*data);
  const int rounds = measure(all, job, device, min_seconds);
  const bool communicates = trainer.replicas().size() > 1 && trainer.options().overlap != OverlapMode::none;
  StepTimes result = step_times_of({.step = step.slowest(),
                                    .eager_step = eager.slowest(),
                                    .data = data ? data->slowest() : 0.0,
                                    .forward = forward.slowest(),
                                    .forward_and_backward = passes.slowest(),
                                    .compute_step = communicates ? compute.slowest() : step.slowest(),
                                    .compute_step_mean = communicates ? compute.mean() : step.mean(),
                                    .communication = communicates ? communication.slowest() : 0.0});
  result.rounds = rounds;
  return result;
}

}  // namespace ddptrain::bench
