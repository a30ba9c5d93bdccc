#pragma once

#include <cstdint>

#include "runtime/comm/world.h"
#include "runtime/device/device.h"
#include "runtime/train/step_graph.h"

namespace ddptrain {

/// How many steps take about `window_seconds`: at least one, and whole graphs where it is more than one graph.
std::uint64_t steps_per_window(double window_seconds, double step_seconds);

/// Collective. Seconds that this rank takes for `steps` steps, from a start in common until its device is done; 0 where
/// it takes no part: it then sleeps until the others are done.
double time_window(StepGraph& graph, std::uint64_t steps, const World& world, Device& device, bool takes_part = true);

}  // namespace ddptrain
