#include "runtime/topology/nccl_network.h"

#include <gtest/gtest.h>

#include "tests/topology/fake_machine.h"

namespace ddptrain {
namespace {

using Names = std::vector<std::string>;

TEST(NcclNetwork, InterfacesByKind) {
  EXPECT_EQ(nccl_interfaces({"docker0", "eth0", "eth1", "ib0", "lo"}, ""), (Names{"ib0"}));
  EXPECT_EQ(nccl_interfaces({"docker0", "eth0", "eth1", "lo", "virbr0"}, ""), (Names{"eth0", "eth1"}));
  EXPECT_EQ(nccl_interfaces({"docker0", "lo"}, ""), (Names{"docker0"}));
  EXPECT_EQ(nccl_interfaces({"lo"}, ""), (Names{"lo"}));
  EXPECT_EQ(nccl_interfaces({}, ""), Names{});
}

TEST(NcclNetwork, InterfacesByName) {
  const Names all = {"eth0", "eth1", "eth10", "ib0", "lo"};
  EXPECT_EQ(nccl_interfaces(all, "eth1"), (Names{"eth1", "eth10"}));
  EXPECT_EQ(nccl_interfaces(all, "=eth1"), (Names{"eth1"}));
  EXPECT_EQ(nccl_interfaces(all, "=eth1,lo"), (Names{"eth1", "lo"}));
  EXPECT_EQ(nccl_interfaces(all, "^eth,lo"), (Names{"ib0"}));
  EXPECT_EQ(nccl_interfaces(all, "^=eth1,ib0"), (Names{"eth0", "eth10", "lo"}));
  EXPECT_EQ(nccl_interfaces(all, "enp"), Names{});
}

TEST(NcclNetwork, PortsOfAdapters) {
  const FakeMachine fake;
  const auto port = [&](const std::string& path, const std::string& state) {
    fake.write("sys/class/infiniband/" + path + "/state", state + "\n");
  };
  port("mlx5_0/ports/1", "4: ACTIVE");
  port("mlx5_1/ports/1", "4: ACTIVE");
  port("mlx5_1/ports/2", "4: ACTIVE");
  port("mlx5_10/ports/1", "4: ACTIVE");
  port("mlx5_2/ports/1", "1: DOWN");
  const auto hcas = [&](const std::string& chosen) { return nccl_hcas(chosen, fake.files().sysfs); };
  EXPECT_EQ(hcas(""), (Names{"mlx5_0:1", "mlx5_1:1", "mlx5_1:2", "mlx5_10:1"}));
  EXPECT_EQ(hcas("mlx5_1"), (Names{"mlx5_1:1", "mlx5_1:2", "mlx5_10:1"}));
  EXPECT_EQ(hcas("=mlx5_1:2"), (Names{"mlx5_1:2"}));
  EXPECT_EQ(hcas("^=mlx5_1:1,mlx5_0"), (Names{"mlx5_1:2", "mlx5_10:1"}));
  EXPECT_EQ(hcas("mlx5_2"), Names{});
  EXPECT_EQ(nccl_hcas("", "/nonexistent"), Names{});
}

}  // namespace
}  // namespace ddptrain
