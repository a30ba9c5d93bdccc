#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "runtime/train/measure/calibration.h"

namespace ddptrain {
namespace {

/// Two ranks on the cores of a virtual machine, each of which is slower for seconds on end and tells nobody. A step
/// takes 5% longer than the compute of the slower rank.
class UnevenCores final : public TimedJob {
 public:
  static constexpr double kEfficiency = 1.0 / 1.05;

  explicit UnevenCores(std::mt19937& random) : random_(random) {}

  Window time(TimedWork work, std::uint64_t steps, std::uint64_t /*lead*/) override {
    constexpr double kStep = 5e-3;
    for (Core& core : cores_) core.advance(last_seconds_, random_);
    const double slowest = std::max(cores_[0].factor(), cores_[1].factor());
    std::vector<double> once = {cores_[0].factor(), cores_[1].factor()};
    if (work == TimedWork::alone) once[1] = 0.0;
    if (work == TimedWork::step) once = {slowest / kEfficiency, slowest / kEfficiency};
    if (work == TimedWork::communication) once = {0.05, 0.05};
    Window window;
    for (const double factor : once) window.seconds.push_back(kStep * static_cast<double>(steps) * factor);
    window.cpu_seconds = window.seconds;
    last_seconds_ = *std::ranges::max_element(window.seconds);
    return window;
  }
  std::vector<double> time_compute(bool /*communicates*/) override { return {5e-3, 5e-3}; }

 private:
  struct Core {
    bool slow = false;
    double left = 0.0;  ///< Seconds until its speed changes.

    double factor() const { return slow ? 1.4 : 1.0; }
    void advance(double seconds, std::mt19937& random) {
      constexpr double kMeanSeconds = 3.0;
      for (left -= seconds; left <= 0.0; left += std::exponential_distribution<double>(1.0 / kMeanSeconds)(random)) {
        slow = !slow;
      }
    }
  };

  std::mt19937& random_;
  std::array<Core, 2> cores_;
  double last_seconds_ = 0.0;
};

TEST(Calibration, CoresThatChangeTheirSpeedChangeTheEfficiencyLittle) {
  constexpr unsigned kRuns = 100;
  std::mt19937 random(1);
  unsigned near = 0;
  unsigned held = 0;
  for (unsigned run = 0; run < kRuns; ++run) {
    UnevenCores job(random);
    const Estimate efficiency = calibrate(job, 64.0, 5e-3, false, {4.0, 12.0}).scaling_efficiency;
    near += std::abs(efficiency.value - UnevenCores::kEfficiency) <= 0.06;
    held += efficiency.contains(UnevenCores::kEfficiency);
  }
  EXPECT_GE(near, 0.93 * kRuns);
  EXPECT_GE(held, 0.92 * kRuns);
}

}  // namespace
}  // namespace ddptrain
