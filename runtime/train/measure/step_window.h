#pragma once

#include <cstdint>

#include "runtime/comm/world.h"
#include "runtime/device/device.h"
#include "runtime/train/step/step_graph.h"

namespace ddptrain {

constexpr std::uint64_t kUnroll = StepGraphOptions{}.unroll;

/// How many steps take about `window_seconds`: at least one, and whole graphs where it is more than one graph.
std::uint64_t steps_per_window(double window_seconds, double step_seconds);

struct WindowOptions {
  bool takes_part = true;  ///< This rank; else it sleeps until the others are done.
  bool waits = true;       ///< Until the device is done; else, on a CPU, sums of the last step may go on behind.
};

struct WindowTime {
  double seconds = 0.0;
  double cpu_seconds = 0.0;  ///< Of the calling thread, which on a CPU computes: less if it had to wait for a core.
};

/// Collective. What this rank takes for `steps` steps, from a start in common; 0 where it takes no part.
WindowTime time_window(StepGraph& graph, std::uint64_t steps, const World& world, Device& device,
                       const WindowOptions& options = {});

}  // namespace ddptrain
