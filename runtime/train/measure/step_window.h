#pragma once

#include <cstdint>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/device/device.h"
#include "runtime/train/measure/undelayed.h"
#include "runtime/train/step/step_graph.h"

namespace ddptrain {

constexpr std::uint64_t kUnroll = StepGraphOptions{}.unroll;

/// The number of steps that take about `window_seconds`: at least one, and a multiple of kUnroll if it is larger.
std::uint64_t steps_per_window(double window_seconds, double step_seconds);

struct WindowOptions {
  bool takes_part = true;             ///< If not, this rank sleeps until the others are done.
  bool waits = true;                  ///< Wait for the device. If not, reductions of the last step may go on on a CPU.
  std::uint64_t steps_per_piece = 0;  ///< 0: no pieces. A device that runs steps later, as a GPU, has none.
};

struct WindowTime {
  double seconds = 0.0;
  double cpu_seconds = 0.0;  ///< CPU time of the calling thread, which computes on a CPU. Less if it waited for a core.
  std::vector<PieceEnd> pieces;
};

/// Times `steps` steps from a common start of all ranks. Zero if this rank takes no part. Collective.
WindowTime time_window(StepGraph& graph, std::uint64_t steps, const World& world, Device& device,
                       const WindowOptions& options = {});

}  // namespace ddptrain
