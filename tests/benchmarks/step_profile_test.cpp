#include "benchmarks/ddpbench/devices/step_profile.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ddptrain::bench {
namespace {

/// A step whose parts are chosen, in microseconds, on two ranks, the second of which computes 2% slower. A sum of 12 us
/// begins 8 us before the end of backward; the update follows it and takes 5 us, of which backward hides none.
struct FakeStep {
  double data = 3, forward = 30, backward = 55, optimizer = 5, communication = 12, early = 8;

  static double slowest(double compute) { return 1.02 * compute; }
  static double mean(double compute) { return 1.01 * compute; }
  double passes() const { return data + forward + backward; }

  TimedPasses timed() const {
    const double begun = slowest(passes()) - early;
    const double summed = std::max(begun + communication, slowest(passes()));
    return {.step = summed + slowest(optimizer),
            .eager_step = summed + slowest(optimizer) + 9,
            .data = slowest(data),
            .forward = slowest(data + forward),
            .forward_and_backward = slowest(passes()),
            .compute_step = slowest(passes() + optimizer),
            .compute_step_mean = mean(passes() + optimizer),
            .communication = communication};
  }
};

TEST(StepProfile, PartsAreThoseOfAStepThatIsKnown) {
  const StepTimes times = step_times_of(FakeStep{}.timed());
  EXPECT_NEAR(times.data, 1.02 * 3, 1e-9);
  EXPECT_NEAR(times.forward, 1.02 * 30, 1e-9);
  EXPECT_NEAR(times.backward, 1.02 * 55, 1e-9);
  EXPECT_NEAR(times.optimizer, 1.02 * 5, 1e-9);
  EXPECT_NEAR(times.exposed_communication, 4, 1e-9);
  EXPECT_NEAR(times.stragglers, 0.01 * 93, 1e-9);
  EXPECT_NEAR(times.communication, 12, 1e-9);
  EXPECT_NEAR(times.eager_step - times.step, 9, 1e-9);
}

TEST(StepProfile, PartsAddUpToTheStep) {
  const StepTimes times = step_times_of(FakeStep{.communication = 3}.timed());
  const double parts = times.data + times.forward + times.backward + times.optimizer + times.exposed_communication;
  EXPECT_NEAR(parts, times.step, 1e-9);
  EXPECT_NEAR(times.exposed_communication, 0, 1e-9);
}

}  // namespace
}  // namespace ddptrain::bench
