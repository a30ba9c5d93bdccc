#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

#include "tests/train/measure/simulated_gpus.h"

namespace ddptrain {
namespace {

/// Four GPUs at their power limit. The clock of each wanders by some per cent within a second, and sinks further after
/// a few tenths of a second without communication, because more of the GPU is busy. Now and then a step is held up.
class PowerLimitedGpus final : public SimulatedGpus {
 public:
  static constexpr double kCompute = 26.2e-3;
  static constexpr double kExposed = 0.8e-3;

  explicit PowerLimitedGpus(std::mt19937& random) : random_(random) {}

  std::vector<double> time_compute(bool communicates) override {
    return once(communicates ? TimedWork::step : TimedWork::compute_step);
  }

 private:
  std::vector<double> once(TimedWork work) override {
    std::vector<double> seconds(kRanks, 0.0);
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      if (work == TimedWork::alone && rank > 0) continue;
      seconds[rank] = work == TimedWork::communication ? 1.5e-3 : kCompute * slowness(rank, work) * noisy();
    }
    const double slowest = *std::ranges::max_element(seconds);
    if (work == TimedWork::step) seconds.assign(kRanks, slowest + kExposed);
    if (std::uniform_real_distribution<>()(random_) < 0.01) {
      for (double& of_rank : seconds) of_rank += of_rank > 0.0 ? 3e-3 : 0.0;
    }
    for (std::size_t rank = 0; rank < kRanks; ++rank) advance(rank, work, *std::ranges::max_element(seconds));
    return seconds;
  }

  double noisy() { return 1.0 + 0.003 * normal_(random_); }

  /// In the middle of a step.
  double slowness(std::size_t rank, TimedWork work) const {
    return 1.0 + wander_[rank] + load_after(rank, work, 0.5 * kCompute);
  }

  double load_after(std::size_t rank, TimedWork work, double seconds) const {
    constexpr double kLoadSeconds = 0.3;
    const bool computes = work != TimedWork::communication && (work != TimedWork::alone || rank == 0);
    const double aim = !computes ? -0.1 : work == TimedWork::step ? 0.0 : 0.03;
    return aim + std::exp(-seconds / kLoadSeconds) * (load_[rank] - aim);
  }

  void advance(std::size_t rank, TimedWork work, double seconds) {
    constexpr double kWanderSeconds = 2.0;
    const double keeps = std::exp(-seconds / kWanderSeconds);
    wander_[rank] = keeps * wander_[rank] + 0.03 * std::sqrt(1.0 - keeps * keeps) * normal_(random_);
    load_[rank] = load_after(rank, work, seconds);
  }

  std::mt19937& random_;
  std::normal_distribution<> normal_;
  std::array<double, kRanks> wander_{};
  std::array<double, kRanks> load_{};
};

struct Measured {
  unsigned near = 0;   ///< Runs whose value is within 0.3 ms of the truth.
  unsigned sharp = 0;  ///< Runs whose interval is at most +- 0.3 ms.
  unsigned held = 0;   ///< Runs whose interval has the truth.
};

constexpr unsigned kRuns = 60;

Measured measure(bool alternates) {
  std::mt19937 random(1);
  Measured measured;
  for (unsigned run = 0; run < kRuns; ++run) {
    PowerLimitedGpus job(random);
    const Estimate exposed = calibrate(job, 64.0, 27e-3, alternates, 60.0).exposed;
    measured.near += std::abs(exposed.value - PowerLimitedGpus::kExposed) <= 0.3e-3;
    measured.sharp += exposed.half_width <= 0.3e-3;
    measured.held += exposed.contains(PowerLimitedGpus::kExposed);
  }
  return measured;
}

TEST(Calibration, ExposedCommunicationIsMeasuredAtThePowerLimit) {
  const Measured alternating = measure(true);
  EXPECT_GE(alternating.near, 0.97 * kRuns);
  EXPECT_GE(alternating.sharp, 0.95 * kRuns);
  EXPECT_GE(alternating.held, 0.92 * kRuns);
  const Measured windows = measure(false);
  EXPECT_LE(windows.sharp, 0.5 * kRuns) << "the simulated clocks do not disturb windows: the test tests nothing";
}

}  // namespace
}  // namespace ddptrain
