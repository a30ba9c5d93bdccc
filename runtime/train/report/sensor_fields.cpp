#include "runtime/train/report/sensor_fields.h"

#include <string>

namespace ddptrain {
namespace {

using Json = nlohmann::ordered_json;

/// Values without readings are not finite. JSON writes them as null.
Json fields_of(const SensorWindow& window) {
  Json fields = {{"readings", window.readings},
                 {"sm_mhz", window.sm_mhz.mean()},
                 {"sm_mhz_min", window.sm_mhz.min},
                 {"sm_mhz_max", window.sm_mhz.max},
                 {"memory_mhz", window.memory_mhz.mean()},
                 {"watts", window.watts.mean()},
                 {"watts_max", window.watts.max},
                 {"celsius_max", window.celsius.max},
                 {"memory_used_bytes", window.memory_used_bytes.max},
                 {"throttled", Json::object()}};
  for (std::size_t i = 0; i < window.throttled.size(); ++i) {
    if (window.throttled[i] == 0) continue;
    fields["throttled"][std::string(kThrottleReasons[i])] =
        static_cast<double>(window.throttled[i]) / static_cast<double>(window.readings);
  }
  return fields;
}

}  // namespace

Json sensor_totals(const std::vector<SensorWindow>& of_ranks) {
  SensorWindow all;
  for (const SensorWindow& window : of_ranks) all.add(window);
  Json totals = Json::object();
  if (all.memory_used_bytes.readings > 0) totals["memory_used_bytes"] = all.memory_used_bytes.max;
  if (all.sm_mhz.readings > 0) {
    totals["sm_mhz"] = all.sm_mhz.mean();
    totals["sm_mhz_min"] = all.sm_mhz.min;
  }
  if (all.watts.readings > 0) totals["watts"] = all.watts.mean();
  if (all.celsius.readings > 0) totals["celsius_max"] = all.celsius.max;
  return totals;
}

Json sensor_fields(const std::vector<SensorWindow>& of_ranks) {
  if (of_ranks.empty()) return nullptr;
  Json all = Json::array();
  for (const SensorWindow& window : of_ranks) all.push_back(fields_of(window));
  return all;
}

}  // namespace ddptrain
