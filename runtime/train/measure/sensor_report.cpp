#include "runtime/train/measure/sensor_report.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace ddptrain {
namespace {

using Json = nlohmann::ordered_json;
static_assert(std::is_trivially_copyable_v<SensorWindow>);

Json mean_of(const SensorWindow::Spread& spread) { return spread.readings > 0 ? Json(spread.mean()) : Json(nullptr); }
Json min_of(const SensorWindow::Spread& spread) { return spread.readings > 0 ? Json(spread.min) : Json(nullptr); }
Json max_of(const SensorWindow::Spread& spread) { return spread.readings > 0 ? Json(spread.max) : Json(nullptr); }

Json fields_of(const SensorWindow& window) {
  Json fields = {{"readings", window.readings},
                 {"sm_mhz", mean_of(window.sm_mhz)},
                 {"sm_mhz_min", min_of(window.sm_mhz)},
                 {"sm_mhz_max", max_of(window.sm_mhz)},
                 {"memory_mhz", mean_of(window.memory_mhz)},
                 {"watts", mean_of(window.watts)},
                 {"watts_max", max_of(window.watts)},
                 {"celsius_max", max_of(window.celsius)},
                 {"memory_used_bytes", max_of(window.memory_used_bytes)},
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
  std::string bytes(sizeof(mine), '\0');
  std::memcpy(bytes.data(), &mine, sizeof(mine));
  std::vector<SensorWindow> windows;
  for (const std::string& one : world.all_gather(bytes)) std::memcpy(&windows.emplace_back(), one.data(), one.size());
  const bool known = std::any_of(windows.begin(), windows.end(), [](const SensorWindow& w) { return w.readings > 0; });
  return known ? windows : std::vector<SensorWindow>{};
}

ClockWindows gather_clocks(const World& world, const std::vector<double>& mine) {
  constexpr double kFell = 0.97;
  const double highest = mine.empty() ? 0.0 : *std::max_element(mine.begin(), mine.end());
  std::string told;
  for (const double mhz : mine) told += mhz == 0.0 ? '?' : mhz < kFell * highest ? 'f' : '-';
  std::string worst(mine.size(), '?');  // of all ranks
  for (const std::string& one : world.all_gather(told)) {
    for (std::size_t i = 0; i < one.size() && i < worst.size(); ++i) {
      if (worst[i] == '?' || one[i] == 'f') worst[i] = one[i];
    }
  }
  const auto count = [&](char what) { return static_cast<std::size_t>(std::count(worst.begin(), worst.end(), what)); };
  return {worst.size() - count('?'), count('f')};
}

std::vector<std::pair<std::string, double>> sensor_totals(const std::vector<SensorWindow>& of_ranks) {
  SensorWindow all;
  for (const SensorWindow& window : of_ranks) all.add(window);
  std::vector<std::pair<std::string, double>> totals;
  if (all.memory_used_bytes.readings > 0) totals.emplace_back("memory_used_bytes", all.memory_used_bytes.max);
  if (all.sm_mhz.readings > 0) {
    totals.emplace_back("sm_mhz", all.sm_mhz.mean());
    totals.emplace_back("sm_mhz_min", all.sm_mhz.min);
  }
  if (all.watts.readings > 0) totals.emplace_back("watts", all.watts.mean());
  if (all.celsius.readings > 0) totals.emplace_back("celsius_max", all.celsius.max);
  return totals;
}

std::string sensor_text(const std::vector<SensorWindow>& of_ranks) {
  SensorWindow all;
  for (const SensorWindow& window : of_ranks) all.add(window);
  std::string text = fmt::format("{:.0f} MHz on average ({:.0f} to {:.0f}), {:.0f} W at most, {:.0f} C at most",
                                 all.sm_mhz.mean(), all.sm_mhz.min, all.sm_mhz.max, all.watts.max, all.celsius.max);
  for (std::size_t i = 0; i < all.throttled.size(); ++i) {
    const double share = static_cast<double>(all.throttled[i]) / static_cast<double>(all.readings);
    if (share > 0.0) text += fmt::format("; {} {:.0f}% of the time", kThrottleReasons[i], 100.0 * share);
  }
  return text;
}

Json sensor_fields(const std::vector<SensorWindow>& of_ranks) {
  if (of_ranks.empty()) return nullptr;
  Json all = Json::array();
  for (const SensorWindow& window : of_ranks) all.push_back(fields_of(window));
  return all;
}

}  // namespace ddptrain
