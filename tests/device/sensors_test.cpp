#include "runtime/device/sensors.h"

#include <gtest/gtest.h>

namespace ddptrain {
namespace {

TEST(Sensors, WindowsAddUp) {
  SensorWindow first, second;
  first.add(SensorReading{.sm_mhz = 1980, .watts = 400});
  first.add(SensorReading{.sm_mhz = 1530, .watts = 694, .throttle_reasons = 4});
  second.add(SensorReading{.sm_mhz = 1500, .celsius = 60, .throttle_reasons = 4 | 32});
  first.add(second);
  EXPECT_EQ(first.readings, 3u);
  EXPECT_DOUBLE_EQ(first.sm_mhz.mean(), (1980 + 1530 + 1500) / 3.0);
  EXPECT_DOUBLE_EQ(first.sm_mhz.min, 1500);
  EXPECT_DOUBLE_EQ(first.sm_mhz.max, 1980);
  EXPECT_EQ(first.watts.readings, 2u);  // the third reading had none
  EXPECT_DOUBLE_EQ(first.watts.max, 694);
  EXPECT_DOUBLE_EQ(first.celsius.min, 60);  // not 0, which the first window had no reading of
  EXPECT_EQ(kThrottleReasons[2], "sw_power_cap");
  EXPECT_EQ(first.throttled[2], 2u);
  EXPECT_EQ(first.throttled[5], 1u);
  EXPECT_EQ(first.throttled[0], 0u);
}

TEST(Sensors, SamplerHandsOutEachReadingOnce) {
  double read = 0.0;  // of the sampler's thread
  SensorWindow taken;
  SensorSampler sampler([&] { return SensorReading{.sm_mhz = ++read}; }, std::chrono::milliseconds(1));
  while (taken.readings < 5) taken.add(sampler.take());
  const auto last = static_cast<double>(taken.readings);
  EXPECT_DOUBLE_EQ(taken.sm_mhz.max, last);
  EXPECT_DOUBLE_EQ(taken.sm_mhz.sum, last * (last + 1) / 2);
}

TEST(Sensors, AreNotThereWithoutAGpu) {
  EXPECT_EQ(gpu_sensors(""), nullptr);
  EXPECT_EQ(gpu_sensors("ffff:ff:1f.0"), nullptr);
}

}  // namespace
}  // namespace ddptrain
