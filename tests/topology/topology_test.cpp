#include <gtest/gtest.h>

#include "runtime/topology/machine.h"
#include "runtime/topology/pci.h"

namespace ddptrain {
namespace {

TEST(TopologyLabel, WithoutGpuLinks) {
  EXPECT_EQ(topology_label(1, 1, {}), "none");
  EXPECT_EQ(topology_label(1, 1, {"0000:1b:00.0"}), "none");
  EXPECT_EQ(topology_label(4, 1, {}), "host");
  EXPECT_EQ(topology_label(4, 2, {}), "NET");
  EXPECT_EQ(topology_label(4, 4, {"0000:1b:00.0"}), "NET");
}

TEST(TopologyLabel, OneGpuHasNoLinkAndUnknownGpusAreNeverSys) {
  EXPECT_EQ(topology_label(2, 1, {"ffff:fe:1f.6", "ffff:fe:1f.6"}), "GPU");
  EXPECT_EQ(topology_label(3, 1, {"ffff:fe:1f.6", "ffff:fe:1f.7", "ffff:fe:1f.6"}), "unknown");
  EXPECT_EQ(topology_label(2, 1, {"ffff:fe:1f.6", "ffff:fe:1f.7"}), "unknown");
}

TEST(Pci, BusIdsAsSysfsWritesThem) {
  EXPECT_EQ(normalized_pci_bus_id("00000000:1B:00.0"), "0000:1b:00.0");
  EXPECT_EQ(normalized_pci_bus_id("0000:1b:00.0"), "0000:1b:00.0");
  EXPECT_EQ(normalized_pci_bus_id("00010000:01:00.0"), "00010000:01:00.0");
}

TEST(DriverFacts, GpusThatTheDriverDoesNotKnow) {
  const DriverFacts facts = driver_facts({"ffff:fe:1f.7"});
  ASSERT_EQ(facts.gpus.size(), 1u);
  EXPECT_EQ(facts.gpus[0].name, "unknown");
  EXPECT_FALSE(facts.nvlinks);
}

}  // namespace
}  // namespace ddptrain
