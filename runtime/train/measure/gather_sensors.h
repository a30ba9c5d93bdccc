#pragma once

#include <vector>

#include "runtime/comm/world.h"
#include "runtime/device/sensors.h"
#include "runtime/train/results/rate.h"

namespace ddptrain {

/// The sensor windows of all ranks, on all ranks. Empty if no rank has read sensors. Collective.
std::vector<SensorWindow> gather_sensors(const World& world, const SensorWindow& mine);

/// `mine` has the mean clock of this rank's GPU in each window, in MHz; 0: unknown. All ranks have the same windows.
/// Collective.
ClockWindows gather_clocks(const World& world, const std::vector<double>& mine);

}  // namespace ddptrain
