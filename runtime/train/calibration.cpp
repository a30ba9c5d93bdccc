#include "runtime/train/calibration.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "runtime/core/nvtx.h"
#include "runtime/train/meter.h"

namespace ddptrain {
namespace {

struct Windows {
  std::uint64_t steps;  ///< Per window.
  int rounds;
};

constexpr std::uint64_t kUnroll = StepGraphOptions{}.unroll;

Windows choose_windows(double step_seconds, bool gpu) {
  const bool slow = step_seconds > 0.01;  // a GPU whose clock follows its power needs windows that warm it
  const double window_seconds = !gpu ? 0.1 : slow ? 0.5 : 0.007;
  const double budget_seconds = gpu && !slow ? 0.15 : 8.0;
  auto steps = static_cast<std::uint64_t>(std::max(1.0, std::floor(window_seconds / step_seconds)));
  if (steps > kUnroll) steps -= steps % kUnroll;  // whole graphs
  const double round_seconds = 3.5 * static_cast<double>(steps) * step_seconds;
  return {steps, std::clamp(static_cast<int>(budget_seconds / round_seconds), gpu ? 3 : 1, 5)};
}

/// Seconds that rank 0, or every rank (the slowest counts), takes for `steps` steps.
double time_window(StepGraph& graph, std::uint64_t steps, bool takes_part, const World& world, Backend& backend) {
  world.barrier();
  double seconds = 0.0;
  if (takes_part) {
    const auto start = std::chrono::steady_clock::now();
    graph.run(steps);
    backend.synchronize();
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  world.quiet_barrier();
  return world.max(seconds);
}

}  // namespace

Calibration calibrate(Trainer& trainer, const World& world, Backend& backend, double samples_per_second) {
  Calibration result;
  result.samples_per_second = samples_per_second;
  result.baseline_per_second = samples_per_second;
  if (world.size() == 1) return result;

  const NvtxRange range("calibration");
  const auto samples_per_step = static_cast<double>(trainer.sampler().samples_per_step());
  const Windows windows = choose_windows(samples_per_step / samples_per_second, backend.kind() == DeviceKind::cuda);
  StepGraph& step = trainer.training_steps();
  StepGraph silent = trainer.make_silent_steps();
  StepGraph communication = trainer.make_communication_steps();
  step.prepare();
  silent.prepare();
  communication.prepare();

  std::vector<double> step_seconds, silent_seconds, communication_seconds, alone_seconds;
  const auto per_step = [&](StepGraph& graph, bool takes_part) {
    return time_window(graph, windows.steps, takes_part, world, backend) / static_cast<double>(windows.steps);
  };
  // The graphs' first launch uploads them: not counted.
  if (backend.kind() == DeviceKind::cuda) {
    for (StepGraph* graph : {&step, &silent, &communication}) time_window(*graph, kUnroll + 1, true, world, backend);
  }
  for (int round = 0; round < windows.rounds; ++round) {
    alone_seconds.push_back(per_step(silent, world.rank() == 0));
    step_seconds.push_back(per_step(step, true));
    silent_seconds.push_back(per_step(silent, true));
    communication_seconds.push_back(per_step(communication, true));
  }

  result.rounds = windows.rounds;
  result.step_seconds = median(step_seconds);
  result.step_seconds_without_communication = median(silent_seconds);
  result.communication_seconds = median(communication_seconds);
  result.samples_per_second = samples_per_step / result.step_seconds;
  result.baseline_per_second = samples_per_step / world.size() / median(alone_seconds);
  result.scaling_efficiency = result.samples_per_second / world.size() / result.baseline_per_second;
  const double exposed = result.step_seconds - result.step_seconds_without_communication;
  result.exposed_comm_fraction = std::clamp(exposed / result.communication_seconds, 0.0, 1.0);
  return result;
}

}  // namespace ddptrain
