#include "runtime/train/step_window.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace ddptrain {

std::uint64_t steps_per_window(double window_seconds, double step_seconds) {
  constexpr std::uint64_t kUnroll = StepGraphOptions{}.unroll;
  const auto steps = static_cast<std::uint64_t>(std::max(1.0, std::floor(window_seconds / step_seconds)));
  return steps > kUnroll ? steps - steps % kUnroll : steps;
}

double time_window(StepGraph& graph, std::uint64_t steps, const World& world, Device& device,
                   const WindowOptions& options) {
  world.barrier();
  double seconds = 0.0;
  if (options.takes_part) {
    const auto start = std::chrono::steady_clock::now();
    graph.run(steps);
    if (options.waits) device.synchronize();
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  world.quiet_barrier();
  return seconds;
}

}  // namespace ddptrain
