#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/device/sensors.h"

namespace ddptrain {

/// The windows of all ranks, on all ranks; empty where no rank has read sensors. Collective.
std::vector<SensorWindow> gather_sensors(const World& world, const SensorWindow& mine);

/// Windows whose clock is known, and those in which that of a GPU was more than 3% below its highest.
struct ClockWindows {
  std::size_t known = 0;
  std::size_t fell = 0;
};

/// `mine`: mean clocks of this rank's GPU in windows that all ranks share, MHz; 0: unknown. On all ranks. Collective.
ClockWindows gather_clocks(const World& world, const std::vector<double>& mine);

/// An object per rank, as docs/reference/metrics.md describes it; null where there are none.
nlohmann::ordered_json sensor_fields(const std::vector<SensorWindow>& of_ranks);

/// What all ranks' GPUs showed together, by name, for a line in which a rank has no object of its own: the lowest and
/// the mean clock, the power of a GPU, the highest temperature, the most memory in use; missing where nothing is known.
std::vector<std::pair<std::string, double>> sensor_totals(const std::vector<SensorWindow>& of_ranks);

}  // namespace ddptrain
