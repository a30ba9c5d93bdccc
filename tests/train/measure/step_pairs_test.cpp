#include "runtime/train/measure/step_pairs.h"

#include <gtest/gtest.h>

#include <vector>

namespace ddptrain {
namespace {

TEST(StepPairs, StepsAreComparedAtTheMeanClock) {
  // The third step has the same cycles as the first in more seconds: its clock was lower.
  const std::vector<double> seconds = at_mean_clock({{1.0, 150.0}, {1.0, 160.0}, {1.2, 150.0}, {1.0, 160.0}});
  EXPECT_DOUBLE_EQ(seconds[0], seconds[2]);
  EXPECT_DOUBLE_EQ(seconds[1] / seconds[0], 160.0 / 150.0);
  EXPECT_DOUBLE_EQ(seconds[0] + seconds[1] + seconds[2] + seconds[3], 4.2);
}

TEST(StepPairs, WithoutTheCyclesOfOneStepSecondsCount) {
  EXPECT_EQ(at_mean_clock({{1.0, 150.0}, {2.0, 0.0}}), (std::vector<double>{1.0, 2.0}));
}

}  // namespace
}  // namespace ddptrain
