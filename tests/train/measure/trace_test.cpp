#include "runtime/train/measure/trace.h"

#include <gtest/gtest.h>

#include <vector>

namespace ddptrain {
namespace {

TEST(Trace, ComputeOfAStepEndsWithItsLastBackwardPass) {
  const auto span = [](const char* name, double begin, double end) {
    return TimelineSpan{name, Lane::compute, begin, end};
  };
  const std::vector<TimelineSpan> first = {span("step 0", 1, 9), span("forward", 1, 2), span("backward", 2, 4),
                                           span("forward", 4, 5), span("backward", 5, 8)};
  EXPECT_DOUBLE_EQ(compute_seconds(first), 7.0);
  std::vector<TimelineSpan> both = first;
  both.push_back(span("step 1", 9, 16));
  both.push_back(span("backward", 11, 14));
  EXPECT_DOUBLE_EQ(compute_seconds(both), 5.0);
  both.insert(both.end() - 1, span("wait for bucket 0", 9, 11));
  EXPECT_DOUBLE_EQ(compute_seconds(both), 3.0);
}

}  // namespace
}  // namespace ddptrain
