#include "runtime/train/measure/sensor_report.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

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

std::vector<SensorWindow> gather_sensors(const World& world, const SensorWindow& mine) {
  std::vector<SensorWindow> windows = world.all_gather(std::vector{mine});
  const bool known = std::any_of(windows.begin(), windows.end(), [](const SensorWindow& w) { return w.readings > 0; });
  return known ? windows : std::vector<SensorWindow>{};
}

ClockWindows gather_clocks(const World& world, const std::vector<double>& mine) {
  constexpr double kFell = 0.97;
  const double highest = mine.empty() ? 0.0 : *std::max_element(mine.begin(), mine.end());
  std::string told;
  for (const double mhz : mine) told += mhz == 0.0 ? '?' : mhz < kFell * highest ? 'f' : '-';
  std::string worst(mine.size(), '?');  // the worst of all ranks
  for (const std::string& one : world.all_gather(told)) {
    for (std::size_t i = 0; i < one.size() && i < worst.size(); ++i) {
      if (worst[i] == '?' || one[i] == 'f') worst[i] = one[i];
    }
  }
  const auto count = [&](char what) { return static_cast<std::size_t>(std::count(worst.begin(), worst.end(), what)); };
  return {worst.size() - count('?'), count('f')};
}

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
