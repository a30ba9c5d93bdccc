#include "runtime/topology/machine.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/topology/sysfs.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace ddptrain {
namespace {

/// A tree of files in the form of sysfs and procfs, removed at the end.
class FakeMachine {
 public:
  explicit FakeMachine(bool virtual_machine = false) {
    write("proc/cpuinfo", std::string("processor : 0\nmodel name\t: Test CPU\nflags\t\t: fpu sse2") +
                              (virtual_machine ? " hypervisor" : "") + "\n");
  }

  SystemFiles files() const { return {root_ / "sys", root_ / "proc"}; }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  void cpu(int index, int package, int node) const {
    write("sys/devices/system/cpu/cpu" + std::to_string(index) + "/topology/physical_package_id",
          std::to_string(package) + "\n");
    const std::string cpu = "/cpu" + std::to_string(index);
    write("sys/devices/system/node/node" + std::to_string(node) + "/cpulist", std::to_string(index) + "\n");
    link("sys/devices/system/cpu" + cpu, "sys/devices/system/node/node" + std::to_string(node) + cpu);
  }

  /// `path`: from pci0000:00 to the device.
  void pci_device(const std::string& path, int numa_node, const std::string& cpus = "0-3") const {
    const std::string device = "sys/devices/" + path;
    write(device + "/numa_node", std::to_string(numa_node) + "\n");
    write(device + "/local_cpulist", cpus + "\n");
    link(device, "sys/bus/pci/devices/" + std::filesystem::path(path).filename().string());
  }

  /// A device of a class (net, infiniband), a child of the folder at `parent` below devices/.
  void class_device(const std::string& name, const std::string& kind, const std::string& parent) const {
    const std::string folder = "sys/devices/" + parent + "/" + kind + "/" + name;
    std::filesystem::create_directories(root_ / folder);
    link("sys/devices/" + parent, folder + "/device");
    link(folder, "sys/class/" + kind + "/" + name);
  }

 private:
  void link(const std::string& target, const std::string& name) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::filesystem::create_symlink(root_ / target, root_ / name);
  }

  tests::TempFolder root_;
};

GpuInfo gpu(const std::string& pci) {
  GpuInfo info;
  info.name = "Test GPU";
  info.pci = pci;
  info.pcie = PcieLink{5, 16};
  return info;
}

/// GPUs joined as the labels say, in the order of DriverFacts::nvlinks.
Machine machine_of(int gpus, const std::vector<std::string>& labels) {
  Machine machine;
  machine.links.assign(static_cast<std::size_t>(gpus), std::vector<std::string>(static_cast<std::size_t>(gpus), "X"));
  std::size_t next = 0;
  for (std::size_t i = 0; i < machine.links.size(); ++i) {
    machine.gpus.push_back(gpu("0000:00:00." + std::to_string(i)));
    for (std::size_t j = i + 1; j < machine.links.size(); ++j) {
      machine.links[i][j] = machine.links[j][i] = labels.at(next++);
    }
  }
  return machine;
}

std::string text_of(const std::optional<GpuPair>& pair) {
  return pair ? std::to_string(pair->first) + "," + std::to_string(pair->second) : "unknown";
}

/// Two sockets: on the first one two GPUs and a NIC at one switch, and a GPU behind a switch of the second level; on
/// the second one a GPU and a NIC at different root ports.
class TwoSockets : public testing::Test {
 protected:
  TwoSockets() {
    fake_.cpu(0, 0, 0);
    fake_.cpu(1, 1, 1);
    const std::string one = "pci0000:15/0000:15:01.0/0000:16:00.0/";
    fake_.pci_device(one + "0000:17:00.0/0000:18:00.0", 0, "0");
    fake_.pci_device(one + "0000:17:01.0/0000:19:00.0", 0, "0");
    fake_.pci_device(one + "0000:17:02.0/0000:1a:00.0", 0, "0");
    fake_.write("sys/devices/" + one + "0000:17:02.0/0000:1a:00.0/current_link_speed", "32.0 GT/s PCIe\n");
    fake_.write("sys/devices/" + one + "0000:17:02.0/0000:1a:00.0/current_link_width", "16\n");
    fake_.class_device("mlx5_0", "infiniband", one + "0000:17:02.0/0000:1a:00.0");
    fake_.class_device("ib0", "net", one + "0000:17:02.0/0000:1a:00.0");
    fake_.write("sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
    fake_.write("sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n");
    fake_.pci_device(one + "0000:17:03.0/0000:1b:00.0/0000:1c:00.0/0000:1d:00.0", 0, "0");
    fake_.pci_device("pci0000:80/0000:80:01.0/0000:81:00.0", 1, "1");
    fake_.pci_device("pci0000:80/0000:80:02.0/0000:82:00.0", 1, "1");
    fake_.write("sys/devices/pci0000:80/0000:80:02.0/0000:82:00.0/current_link_speed", "Unknown\n");
    fake_.write("sys/devices/pci0000:80/0000:80:02.0/0000:82:00.0/current_link_width", "63\n");
    fake_.class_device("eth0", "net", "pci0000:80/0000:80:02.0/0000:82:00.0");
    fake_.write("sys/class/net/eth0/speed", "25000\n");
    fake_.class_device("lo", "net", "virtual");
    facts_.gpus = {gpu("0000:18:00.0"), gpu("0000:19:00.0"), gpu("0000:1d:00.0"), gpu("0000:81:00.0")};
    facts_.nvlinks = {0, 0, 0, 2, 0, 0};
  }
  Machine describe() const { return describe_machine("h", facts_, fake_.files()); }

  FakeMachine fake_;
  DriverFacts facts_;
};

TEST_F(TwoSockets, LinksBetweenGpusAndNics) {
  const std::vector<std::vector<std::string>> expected = {
      {"X", "PIX", "PXB", "SYS", "PIX", "SYS"}, {"PIX", "X", "NV2", "SYS", "PIX", "SYS"},
      {"PXB", "NV2", "X", "SYS", "PXB", "SYS"}, {"SYS", "SYS", "SYS", "X", "SYS", "PHB"},
      {"PIX", "PIX", "PXB", "SYS", "X", "SYS"}, {"SYS", "SYS", "SYS", "PHB", "SYS", "X"}};
  EXPECT_EQ(describe().links, expected);
}

TEST_F(TwoSockets, PlacesProcessorsAndNics) {
  const Machine machine = describe();
  EXPECT_EQ(machine.cpu_model, "Test CPU");
  EXPECT_EQ(machine.cpus, 2);
  EXPECT_EQ(machine.sockets, 2);
  EXPECT_EQ(machine.gpus[3].numa_node, 1);
  EXPECT_EQ(machine.gpus[3].cpu_affinity, "1");
  ASSERT_EQ(machine.nics.size(), 2u);
  EXPECT_EQ(machine.nics[0].name, "mlx5_0");
  EXPECT_EQ(machine.nics[0].kind, "infiniband");
  EXPECT_EQ(machine.nics[1].name, "eth0");
  EXPECT_EQ(machine.nics[1].speed_gbit, 25.0);
  EXPECT_EQ(machine.nics[1].pci_path.size(), 3u);
}

TEST_F(TwoSockets, NearestFarthestShared) {
  const Machine machine = describe();
  EXPECT_EQ(text_of(compare_pairs(machine).nearest), "1,2");
  EXPECT_EQ(text_of(compare_pairs(machine).farthest), "0,3");
  EXPECT_EQ(nics_of_gpus(machine), std::vector<std::vector<std::string>>(4, {"mlx5_0"}));
  const auto text = machine_text(machine);
  EXPECT_CONTAINS(text, "GPU2 through mlx5_0");
  EXPECT_CONTAINS(text, "GPUs 0, 1, 2, 3 share mlx5_0: to other hosts, each has 1/4 of its rate");
  const auto shared = shared_nics(machine);
  ASSERT_EQ(shared.size(), 1u);  // eth0 does not count beside InfiniBand
  EXPECT_EQ(shared[0].nics, std::vector<std::string>{"mlx5_0"});
  EXPECT_EQ(shared[0].gpus, (std::vector<std::size_t>{0, 1, 2, 3}));
}

TEST_F(TwoSockets, RanksThatShareANetworkCardAreWarnedOf) {
  const auto warnings = [&](const std::vector<RankOfGpu>& ranks) {
    return shared_nic_warnings("h", ranks, fake_.files());
  };
  EXPECT_EQ(warnings({{6, "0000:18:00.0"}, {7, "00000000:81:00.0"}}),
            std::vector<std::string>{"h: ranks 6, 7 share the network card mlx5_0: to other hosts, each has 1/2 of its "
                                     "rate. Take GPUs with cards of their own (ddptopo), or fewer ranks per host."});
  EXPECT_TRUE(warnings({{6, "0000:18:00.0"}}).empty());
  // A second InfiniBand card beside the GPU of the other socket.
  fake_.class_device("mlx5_1", "infiniband", "pci0000:80/0000:80:02.0/0000:82:00.0");
  EXPECT_TRUE(warnings({{0, "0000:18:00.0"}, {1, "0000:81:00.0"}}).empty());
  EXPECT_EQ(warnings({{0, "0000:18:00.0"}, {1, "0000:19:00.0"}, {2, "0000:81:00.0"}}).size(), 1u);
}

TEST_F(TwoSockets, RatesOfPairs) {
  facts_.gpus[1].nvlink_gb_per_s = facts_.gpus[2].nvlink_gb_per_s = 25.0;
  facts_.gpus[0].pcie = PcieLink{4, 16};
  const Machine machine = describe();
  EXPECT_EQ(machine.gb_per_s[1][2], 50.0);
  EXPECT_EQ(machine.gb_per_s[0][1], 31.0);
  EXPECT_EQ(machine.gb_per_s[3][2], 63.0);
  EXPECT_EQ(machine.gb_per_s[0][0], std::nullopt);
}

TEST_F(TwoSockets, JsonHasTheSchemaOfTheDocumentation) {
  facts_.p2p.assign(4, std::vector<std::optional<bool>>(4, true));
  const auto host = machine_json(describe());
  EXPECT_EQ(host.at("hostname"), "h");
  EXPECT_EQ(host.at("gpus").at(0).at("pcie"), (nlohmann::json{{"generation", 5}, {"width", 16}, {"gb_per_s", 63.0}}));
  EXPECT_EQ(host.at("nics").at(0).at("speed_gbit"), 400.0);
  EXPECT_EQ(host.at("nics").at(0).at("pcie"), host.at("gpus").at(0).at("pcie"));
  EXPECT_TRUE(host.at("nics").at(1).at("pcie").is_null());
  EXPECT_EQ(host.at("numa_nodes").at(1), (nlohmann::json{{"index", 1}, {"socket", 1}, {"cpus", "1"}}));
  EXPECT_EQ(host.at("links").at(0).at(1), "PIX");
  EXPECT_EQ(host.at("nearest_pair"), (nlohmann::json{1, 2}));
  EXPECT_EQ(host.at("farthest_pair"), (nlohmann::json{0, 3}));
  EXPECT_EQ(host.at("p2p").at(0).at(1), true);
  EXPECT_EQ(host.at("shared_nics").at(0).at("gpus").size(), 4u);
  EXPECT_EQ(host.at("nics_of_gpus").at(3), nlohmann::json{"mlx5_0"});
  EXPECT_TRUE(host.at("gb_per_s").at(0).at(0).is_null());
}

TEST_F(TwoSockets, TextHasTheMatrix) {
  const std::string text = machine_text(describe());
  EXPECT_CONTAINS(text, "GPU1    PIX   X     NV2   SYS   PIX     SYS   0             0");
  EXPECT_CONTAINS(text, "Nearest pair   1,2 (NV2)");
  EXPECT_CONTAINS(text, "0: socket 0, CPUs 0; 1: socket 1, CPUs 1\n");
  EXPECT_CONTAINS(text, "mlx5_0  0000:1a:00.0  5.0 x16  63       infiniband  0          400\n");
}

TEST(VirtualMachine, HiddenIsUnknownAndNeverAGuess) {
  const FakeMachine fake(true);
  fake.cpu(0, 0, 0);
  fake.pci_device("pci0000:00/0000:00:05.0", -1);
  fake.pci_device("pci0000:00/0000:00:06.0", -1);
  fake.pci_device("pci0000:00/0000:00:07.0", -1);
  fake.class_device("eth0", "net", "pci0000:00/0000:00:07.0/virtio3");
  fake.write("sys/class/net/eth0/speed", "-1\n");
  DriverFacts facts;
  facts.gpus = {gpu("0000:00:05.0"), gpu("0000:00:06.0")};
  facts.nvlinks = {0};
  const Machine machine = describe_machine("vm", facts, fake.files());
  EXPECT_EQ(machine.links[0][1], "unknown");
  EXPECT_EQ(machine.links[0][2], "unknown");
  EXPECT_EQ(machine.gb_per_s[0][1], std::nullopt);
  EXPECT_EQ(machine.gpus[0].numa_node, std::nullopt);
  EXPECT_EQ(machine.gpus[0].cpu_affinity, std::nullopt);
  EXPECT_EQ(machine.sockets, std::nullopt);
  EXPECT_EQ(machine.numa_nodes.at(0).socket, std::nullopt);
  EXPECT_EQ(machine.nics.at(0).pci, "0000:00:07.0");
  EXPECT_EQ(machine.nics.at(0).speed_gbit, std::nullopt);
  EXPECT_EQ(shared_nics(machine).at(0).gpus, (std::vector<std::size_t>{0, 1}));        // there is only one
  EXPECT_EQ(machine_text(machine).find("SYS "), machine_text(machine).rfind("SYS "));  // in the legend only
}

TEST(Machine, WithoutGpusAndWithoutSysfs) {
  const FakeMachine fake;
  fake.cpu(0, 0, 0);
  const std::string text = machine_text(describe_machine("h", {}, fake.files()));
  EXPECT_CONTAINS(text, "GPUs        none found");
  EXPECT_CONTAINS(text, "0: socket 0, CPUs 0");
  const Machine nothing = describe_machine("h", {}, {"/nonexistent", "/nonexistent"});
  EXPECT_TRUE(machine_json(nothing).at("nearest_pair").is_null());
  EXPECT_CONTAINS(machine_text(nothing), "NUMA nodes  unknown");
}

TEST(Machine, GpusThatTheDriverDoesNotKnowAreJoinedInUnknownWays) {
  DriverFacts facts;
  facts.gpus = {gpu("ffff:fe:1f.6"), gpu("ffff:fe:1f.7")};
  EXPECT_EQ(describe_machine("h", facts).links[0][1], "unknown");
  EXPECT_EQ(describe_machine("h", facts).p2p[0][1], std::nullopt);
}

TEST(Pairs, DistanceOrderAndTies) {
  const Machine mixed = machine_of(3, {"NV1", "PIX", "NV2"});
  EXPECT_EQ(text_of(compare_pairs(mixed).nearest), "1,2");
  EXPECT_EQ(text_of(compare_pairs(mixed).farthest), "0,2");
  const Machine equal = machine_of(3, {"NV18", "NV18", "NV18"});
  EXPECT_EQ(text_of(compare_pairs(equal).nearest), "0,1");
  EXPECT_EQ(text_of(compare_pairs(equal).farthest), "0,1");
  EXPECT_TRUE(compare_pairs(equal).all_equal);
  EXPECT_FALSE(compare_pairs(mixed).all_equal);
  for (const auto& [near, far] :
       {std::pair{"NV1", "PIX"}, {"PIX", "PXB"}, {"PXB", "PHB"}, {"PHB", "NODE"}, {"NODE", "SYS"}}) {
    const Machine machine = machine_of(3, {far, near, far});
    EXPECT_EQ(text_of(compare_pairs(machine).nearest), "0,2") << near;
    EXPECT_EQ(text_of(compare_pairs(machine).farthest), "0,1") << far;
  }
}

TEST(Pairs, UnknownLinks) {
  const Machine nvlink_known = machine_of(3, {"unknown", "NV2", "unknown"});
  EXPECT_EQ(text_of(compare_pairs(nvlink_known).nearest), "0,2");
  EXPECT_EQ(text_of(compare_pairs(nvlink_known).farthest), "unknown");
  EXPECT_EQ(text_of(compare_pairs(machine_of(3, {"PIX", "unknown", "SYS"})).nearest), "unknown");
  EXPECT_FALSE(compare_pairs(machine_of(3, {"unknown", "unknown", "unknown"})).all_equal);
  EXPECT_EQ(text_of(compare_pairs(machine_of(2, {"unknown"})).farthest), "0,1");
  EXPECT_EQ(text_of(compare_pairs(machine_of(1, {})).nearest), "unknown");
}

TEST(Bandwidth, PublishedFigures) {
  const auto rate = [](int generation, int width) { return PcieLink{generation, width}.gb_per_s(); };
  EXPECT_EQ(rate(4, 16), 31.0);
  EXPECT_EQ(rate(5, 16), 63.0);
  EXPECT_EQ(rate(6, 16), 121.0);
  EXPECT_EQ(rate(7, 16), 242.0);
  EXPECT_EQ(rate(5, 8), 31.5);
  EXPECT_EQ(rate(9, 16), std::nullopt);
}

}  // namespace
}  // namespace ddptrain
