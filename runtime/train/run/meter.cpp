#include "runtime/train/run/meter.h"

#include <algorithm>
#include <limits>

#include "runtime/core/error.h"
#include "runtime/train/measure/estimate.h"

namespace ddptrain {
namespace {

constexpr double kShortestSeconds = 1.0;

}  // namespace

void Meter::add(std::uint64_t samples, double seconds) {
  DDP_CHECK(samples > 0 && seconds > 0.0, "a window of {} samples in {} s", samples, seconds);
  windows_.push_back({samples, seconds});
}

Rate Meter::rate() const {
  if (windows_.empty()) return {};
  std::vector<Window> joined;
  double seconds = 0.0;
  for (std::size_t i = windows_.size() > 1 ? 1 : 0; i < windows_.size(); ++i) {
    seconds += windows_[i].seconds;
    if (joined.empty() || joined.back().seconds >= kShortestSeconds) {
      joined.push_back(windows_[i]);
    } else {
      joined.back().samples += windows_[i].samples;
      joined.back().seconds += windows_[i].seconds;
    }
  }
  if (joined.size() > 1 && joined.back().seconds < kShortestSeconds) {
    const Window rest = joined.back();
    joined.pop_back();
    joined.back().samples += rest.samples;
    joined.back().seconds += rest.seconds;
  }
  std::vector<double> rates;
  for (const Window& window : joined) rates.push_back(static_cast<double>(window.samples) / window.seconds);
  const auto [min, max] = std::minmax_element(rates.begin(), rates.end());
  return {median(rates), *min, *max, rates.size(), seconds};
}

double Meter::rate_since(std::size_t first_window) const {
  double samples = 0.0;
  double seconds = 0.0;
  for (std::size_t i = first_window; i < windows_.size(); ++i) {
    if (i == 0 && windows_.size() > 1) continue;
    samples += static_cast<double>(windows_[i].samples);
    seconds += windows_[i].seconds;
  }
  return seconds > 0.0 ? samples / seconds : std::numeric_limits<double>::quiet_NaN();
}

double Meter::seconds() const {
  double total = 0.0;
  for (const Window& window : windows_) total += window.seconds;
  return total;
}

double Meter::repeated_seconds() const { return windows_.empty() ? 0.0 : seconds() - windows_.front().seconds; }

}  // namespace ddptrain
