#include "runtime/train/measure/gather_sensors.h"

#include <algorithm>
#include <string>

namespace ddptrain {

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

}  // namespace ddptrain
