#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/device/sensors.h"

namespace ddptrain {

/// The sensor windows of all ranks, on all ranks. Empty if no rank has read sensors. Collective.
std::vector<SensorWindow> gather_sensors(const World& world, const SensorWindow& mine);

/// Counts of measuring windows.
struct ClockWindows {
  std::size_t known = 0;  ///< The clocks are known.
  std::size_t fell = 0;   ///< A GPU's clock was more than 3% below its highest.
};

/// `mine` has the mean clock of this rank's GPU in each window, in MHz; 0: unknown. All ranks have the same windows.
/// Collective.
ClockWindows gather_clocks(const World& world, const std::vector<double>& mine);

/// One object per rank (docs/reference/metrics.md). Null without sensors.
nlohmann::ordered_json sensor_fields(const std::vector<SensorWindow>& of_ranks);

/// Totals over all ranks' GPUs, by name: the lowest and the mean clock, the power of a GPU, the highest temperature,
/// and the most memory in use. Unknown values are missing.
nlohmann::ordered_json sensor_totals(const std::vector<SensorWindow>& of_ranks);

}  // namespace ddptrain
