#include "runtime/train/measure/step_window.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "runtime/core/process/cores.h"

namespace ddptrain {
namespace {

double thread_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

std::uint64_t steps_per_window(double window_seconds, double step_seconds) {
  const auto steps = static_cast<std::uint64_t>(std::max(1.0, std::floor(window_seconds / step_seconds)));
  return steps > kUnroll ? steps - steps % kUnroll : steps;
}

WindowTime time_window(StepGraph& graph, std::uint64_t steps, const World& world, Device& device,
                       const WindowOptions& options) {
  CoreWait core_wait;
  world.barrier();
  WindowTime time;
  if (options.takes_part) {
    const auto start = std::chrono::steady_clock::now();
    const double waited_before = core_wait.seconds();
    const double cpu_start = thread_cpu_seconds();
    const auto passed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
    const std::uint64_t piece = options.steps_per_piece > 0 ? options.steps_per_piece : steps;
    for (std::uint64_t done = 0; done < steps;) {
      const std::uint64_t count = std::min(piece, steps - done);
      graph.run(count);
      done += count;
      if (options.waits && done == steps) device.synchronize();
      if (options.steps_per_piece > 0) time.pieces.push_back({done, passed(), core_wait.seconds() - waited_before});
    }
    time.cpu_seconds = thread_cpu_seconds() - cpu_start;
    time.seconds = passed();
  }
  world.quiet_barrier();
  return time;
}

}  // namespace ddptrain
