#include "runtime/train/calibration.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/core/nvtx.h"
#include "runtime/train/meter.h"
#include "runtime/train/step_window.h"

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
  const std::uint64_t steps = steps_per_window(window_seconds, step_seconds);
  const double round_seconds = 3.5 * static_cast<double>(steps) * step_seconds;
  return {steps, std::clamp(static_cast<int>(budget_seconds / round_seconds), gpu ? 3 : 1, 5)};
}

/// Seconds per step, an entry per round.
struct Rounds {
  std::vector<double> alone, step, communication;                ///< Of the slowest rank.
  std::vector<double> silent_slowest, silent_mean, silent_mine;  ///< Without communication; `mine`: of this rank.
};

Rounds measure(Trainer& trainer, const Windows& windows, const World& world, Device& device) {
  StepGraph& step = trainer.training_steps();
  StepGraph silent = trainer.make_silent_steps();
  StepGraph communication = trainer.make_communication_steps();
  step.prepare();
  silent.prepare();
  communication.prepare();
  // The graphs' first launch uploads them: not counted.
  if (device.kind() == DeviceKind::cuda) {
    for (StepGraph* graph : {&step, &silent, &communication}) time_window(*graph, kUnroll + 1, world, device);
  }
  const auto mine = [&](StepGraph& graph, bool takes_part = true) {
    return time_window(graph, windows.steps, world, device, takes_part) / static_cast<double>(windows.steps);
  };
  Rounds rounds;
  for (int round = 0; round < windows.rounds; ++round) {
    device.watch().set_part(static_cast<std::uint32_t>(round), static_cast<std::uint32_t>(windows.rounds));
    rounds.alone.push_back(world.max(mine(silent, world.rank() == 0)));
    rounds.step.push_back(world.max(mine(step)));
    rounds.silent_mine.push_back(mine(silent));
    rounds.silent_slowest.push_back(world.max(rounds.silent_mine.back()));
    rounds.silent_mean.push_back(world.sum(rounds.silent_mine.back()) / world.size());
    rounds.communication.push_back(world.max(mine(communication)));
  }
  return rounds;
}

std::vector<double> gather(double value, const World& world) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  std::vector<double> all;
  for (const std::string& one : world.all_gather(bytes)) {
    std::memcpy(&value, one.data(), sizeof(value));
    all.push_back(value);
  }
  return all;
}

}  // namespace

Calibration calibrate(Trainer& trainer, const World& world, Device& device, double samples_per_second) {
  Calibration result;
  result.samples_per_second = samples_per_second;
  result.baseline_per_second = samples_per_second;
  if (world.size() == 1) return result;

  const NvtxRange range("calibration");
  const Watch::Phase phase(device.watch(), "calibration");
  const auto samples_per_step = static_cast<double>(trainer.sampler().samples_per_step());
  const Windows windows = choose_windows(samples_per_step / samples_per_second, device.kind() == DeviceKind::cuda);
  const Rounds rounds = measure(trainer, windows, world, device);

  result.rounds = windows.rounds;
  result.step_seconds = median(rounds.step);
  result.step_seconds_without_communication = median(rounds.silent_slowest);
  result.step_seconds_without_communication_mean = median(rounds.silent_mean);
  result.step_seconds_without_communication_per_rank = gather(median(rounds.silent_mine), world);
  result.communication_seconds = median(rounds.communication);
  result.samples_per_second = samples_per_step / result.step_seconds;
  result.baseline_per_second = samples_per_step / world.size() / median(rounds.alone);
  result.scaling_efficiency = result.samples_per_second / world.size() / result.baseline_per_second;
  const double exposed = result.step_seconds - result.step_seconds_without_communication;
  result.exposed_comm_fraction = std::clamp(exposed / result.communication_seconds, 0.0, 1.0);
  return result;
}

}  // namespace ddptrain
