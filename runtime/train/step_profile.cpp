#include "runtime/train/step_profile.h"

#include <vector>

#include "runtime/train/meter.h"
#include "runtime/train/step_window.h"

namespace ddptrain {
namespace {

constexpr std::uint64_t kUnroll = StepGraphOptions{}.unroll;
constexpr int kRounds = 5;

/// A sequence of work that is measured once in every round.
struct Series {
  StepGraph* graph;
  std::vector<double> seconds = {};  ///< Per step, of the slowest rank.
  std::vector<double> mean = {};     ///< The same over the ranks.
};

void measure(std::vector<Series>& all, const World& world, Device& device) {
  const bool gpu = device.kind() == DeviceKind::cuda;
  for (Series& series : all) {  // eager steps, capture and the graphs' first launch: not counted
    if (gpu) time_window(*series.graph, 2 * kUnroll + 1, world, device);
  }
  const std::uint64_t probe = gpu ? kUnroll : 1;
  const double step = world.max(time_window(*all.front().graph, probe, world, device)) / static_cast<double>(probe);
  const std::uint64_t steps = steps_per_window(gpu ? 0.02 : 0.1, step);
  for (int round = 0; round < kRounds; ++round) {
    for (Series& series : all) {
      const double mine = time_window(*series.graph, steps, world, device) / static_cast<double>(steps);
      series.seconds.push_back(world.max(mine));
      series.mean.push_back(world.sum(mine) / world.size());
    }
  }
}

}  // namespace

StepTimes profile_step(Trainer& trainer, StepGraph* data, const World& world, Device& device) {
  StepGraph eager = trainer.make_eager_steps();
  StepGraph forward = trainer.make_pass_steps(false);
  StepGraph passes = trainer.make_pass_steps(true);
  StepGraph silent = trainer.make_silent_steps();
  StepGraph communication = trainer.make_communication_steps();
  std::vector<Series> all = {{&trainer.training_steps()}, {&eager}, {&forward}, {&passes}, {&silent}, {&communication}};
  if (data != nullptr) all.push_back({data});
  measure(all, world, device);

  const auto time = [&](std::size_t series) { return median(all[series].seconds); };
  const std::size_t without_communication = world.size() > 1 ? 4 : 0;
  StepTimes result;
  result.rounds = kRounds;
  result.step = time(0);
  result.eager_step = time(1);
  result.data = data != nullptr ? time(6) : 0.0;
  result.forward = time(2) - result.data;
  result.backward = time(3) - time(2);
  result.optimizer = time(without_communication) - time(3);
  result.exposed_communication = result.step - time(without_communication);
  result.stragglers = time(without_communication) - median(all[without_communication].mean);
  result.communication = world.size() > 1 ? time(5) : 0.0;
  return result;
}

}  // namespace ddptrain
