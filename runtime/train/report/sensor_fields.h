#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/device/sensors.h"

namespace ddptrain {

/// One object per rank (docs/reference/metrics.md). Null without sensors.
nlohmann::ordered_json sensor_fields(const std::vector<SensorWindow>& of_ranks);

/// Totals over all ranks' GPUs, by name: the lowest and the mean clock, the power of a GPU, the highest temperature,
/// and the most memory in use. Unknown values are missing.
nlohmann::ordered_json sensor_totals(const std::vector<SensorWindow>& of_ranks);

}  // namespace ddptrain
