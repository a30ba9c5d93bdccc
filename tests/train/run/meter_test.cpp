#include "runtime/train/run/meter.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

TEST(Meter, LeavesTheFirstWindowOutWhereThereAreMore) {
  Meter meter;
  meter.add(10, 10.0);
  EXPECT_EQ(meter.rate().median, 1.0);
  EXPECT_EQ(meter.repeated_seconds(), 0.0);
  EXPECT_EQ(meter.rate_since(0), 1.0);
  EXPECT_TRUE(std::isnan(meter.rate_since(1)));
  for (const double seconds : {1.0, 2.0, 5.0}) meter.add(100, seconds);
  const Rate rate = meter.rate();
  EXPECT_EQ(rate.median, 50.0);
  EXPECT_EQ(rate.min, 20.0);
  EXPECT_EQ(rate.max, 100.0);
  EXPECT_EQ(rate.windows, 3u);
  EXPECT_DOUBLE_EQ(meter.rate_since(0), 300.0 / 8.0);
  EXPECT_DOUBLE_EQ(meter.rate_since(2), 200.0 / 7.0);
  EXPECT_DOUBLE_EQ(meter.seconds(), 18.0);
  EXPECT_DOUBLE_EQ(meter.repeated_seconds(), 8.0);
}

TEST(Meter, JoinsWindowsUntilTheyLastASecond) {
  Meter meter;
  meter.add(10, 10.0);
  for (const double seconds : {0.25, 0.5, 0.25, 3.0, 0.5}) meter.add(100, seconds);
  const Rate rate = meter.rate();
  EXPECT_EQ(rate.windows, 2u);
  EXPECT_DOUBLE_EQ(rate.max, 300.0 / 1.0);
  EXPECT_DOUBLE_EQ(rate.min, 200.0 / 3.5);
  EXPECT_DOUBLE_EQ(rate.seconds, 4.5);
  Meter brief;
  brief.add(10, 10.0);
  brief.add(10, 0.1);
  brief.add(10, 0.3);
  EXPECT_EQ(brief.rate().windows, 1u);
  EXPECT_DOUBLE_EQ(brief.rate().median, 50.0);
}

TEST(Meter, RefusesEmptyWindows) {
  Meter meter;
  EXPECT_THROW(meter.add(0, 1.0), Error);
  EXPECT_THROW(meter.add(1, 0.0), Error);
}

}  // namespace
}  // namespace ddptrain
