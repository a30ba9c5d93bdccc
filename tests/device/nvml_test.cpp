#include <gtest/gtest.h>

#include "benchmarks/ddpbench/doctor/gpu_links.h"
#include "runtime/device/sensors.h"
#include "runtime/topology/machine.h"

namespace ddptrain {
namespace {

TEST(Nvml, SensorsAreRead) {
  const ReadSensors read = gpu_sensors("0000:1b:00.0");
  ASSERT_NE(read, nullptr);
  const SensorReading reading = read();
  EXPECT_EQ(reading.sm_mhz, 345.0);
  EXPECT_EQ(reading.memory_mhz, 2619.0);
  EXPECT_EQ(reading.watts, 412.5);
  EXPECT_EQ(reading.celsius, std::nullopt);
  EXPECT_EQ(reading.memory_used_bytes, std::nullopt);  // this library has no such call
  EXPECT_EQ(kThrottleReasons[6], "hw_thermal_slowdown");
  EXPECT_EQ(reading.throttle_reasons, 1u << 6);
}

TEST(Nvml, LinksAreRead) {
  const auto links = bench::gpu_links("0000:1b:00.0");
  ASSERT_TRUE(links);
  EXPECT_EQ(links->pcie_generation, 1.0);
  EXPECT_EQ(links->pcie_generation_max, 5.0);
  EXPECT_EQ(links->pcie_width, 4.0);
  EXPECT_EQ(links->pcie_width_max, 16.0);
  EXPECT_EQ(links->pcie_replays, std::nullopt);
  EXPECT_EQ(links->nvlinks, 2.0);
  EXPECT_EQ(links->nvlink_errors, 1.0 + 2.0 + 3.0 + 4.0);
  EXPECT_EQ(links->sm_mhz_max, 1980.0);
}

TEST(Nvml, TopologyIsRead) {
  const DriverFacts facts = driver_facts({});
  ASSERT_EQ(facts.gpus.size(), 2u);
  const GpuInfo& gpu = facts.gpus[0];
  EXPECT_EQ(gpu.pci, "0000:1b:00.0");
  EXPECT_EQ(gpu.name, "Fake H100");
  ASSERT_TRUE(gpu.pcie);
  EXPECT_EQ(gpu.pcie->generation, 5);
  EXPECT_EQ(gpu.pcie->width, 16);
  EXPECT_EQ(gpu.nvlinks, 2);
  EXPECT_EQ(gpu.nvlinks_to_switch, 1);
  EXPECT_EQ(gpu.nvlink_gb_per_s, 25.0);
  EXPECT_EQ(facts.gpus[1].pci, "0000:1c:00.0");
  EXPECT_EQ(facts.gpus[1].nvlinks_to_switch, 0);
  EXPECT_EQ(facts.nvlinks, std::vector{1}) << "links that both GPUs name, which the second names twice";
  const DriverFacts strange = driver_facts({"0000:1b:00.0", "0000:1d:00.0"});
  EXPECT_EQ(strange.gpus.at(1).name, "unknown");
  EXPECT_FALSE(strange.nvlinks) << "NVML does not know the other GPU";
}

TEST(Nvml, OtherGpusAreUnknown) {
  EXPECT_FALSE(bench::gpu_links(""));
  EXPECT_FALSE(bench::gpu_links("0000:1d:00.0"));
  EXPECT_EQ(gpu_sensors("0000:1d:00.0"), nullptr);
}

}  // namespace
}  // namespace ddptrain
