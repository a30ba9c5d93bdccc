#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/topology/pci.h"

namespace ddptrain {

/// A PCIe link: the fastest rate of a GPU's link (an idle link runs slower), the current rate of a NIC's link.
struct PcieLink {
  int generation = 0;
  int width = 0;  ///< Lanes.

  /// Theoretical rate in one direction, 1e9 bytes. nullopt: the generation is not known here.
  std::optional<double> gb_per_s() const;
};

/// The GPUs of a machine are numbered as CUDA does if the program has CUDA, otherwise as the driver does.
struct GpuInfo {
  std::string name = "unknown";
  std::string pci;  ///< Normalized bus id.
  std::vector<std::string> pci_path;
  std::optional<int> numa_node;
  std::optional<std::string> cpu_affinity;  ///< A Linux list such as 0-31,64-95. nullopt: hidden.
  std::optional<PcieLink> pcie;
  int nvlinks = 0;                        ///< Active NVLinks, to GPUs and switches.
  int nvlinks_to_switch = 0;              ///< The part of them that ends at an NVSwitch.
  std::optional<double> nvlink_gb_per_s;  ///< Theoretical rate of one link, one direction.
};

struct NicInfo {
  std::string name;  ///< mlx5_0, eth0 ...
  std::string pci;
  std::vector<std::string> pci_path;
  std::string kind;  ///< infiniband, roce or ethernet.
  std::optional<int> numa_node;
  std::optional<PcieLink> pcie;
  std::optional<double> speed_gbit;  ///< Rate of its fastest port.
};

struct NumaNode {
  int index = 0;
  std::optional<int> socket;  ///< nullopt: hidden, or the node has memory only.
  std::string cpus;           ///< A Linux list; empty: the node has memory only.
};

/// GPUs that have the same nearest NICs, if there are fewer NICs than GPUs.
struct SharedNics {
  std::vector<std::string> nics;
  std::vector<std::size_t> gpus;
};

/// A pair of GPUs by number, the lower one first.
using GpuPair = std::pair<std::size_t, std::size_t>;

/// The devices of a host and the links between them. Rows and columns of `links`: the GPUs, then the NICs.
struct Machine {
  std::string hostname;
  std::string cpu_model = "unknown";
  int cpus = 0;                ///< Online logical processors.
  std::optional<int> sockets;  ///< nullopt: hidden.
  std::vector<NumaNode> numa_nodes;
  std::vector<GpuInfo> gpus;
  std::vector<NicInfo> nics;
  std::vector<std::vector<std::string>> links;               ///< X, NV#, PIX, PXB, PHB, NODE, SYS, "unknown".
  std::vector<std::vector<std::optional<double>>> gb_per_s;  ///< GPU x GPU, theoretical, one direction.
  std::vector<std::vector<std::optional<bool>>> p2p;  ///< GPU x GPU: the row's GPU can access the column's memory.
};

/// The driver's report about the GPUs.
struct DriverFacts {
  std::vector<GpuInfo> gpus;  ///< Without NUMA node, affinity and path, which come from sysfs.
  /// Active NVLinks between GPUs 0 and 1, 0 and 2 ...; through switches the number of the GPU that has fewer. nullopt:
  /// the links are unknown.
  std::optional<std::vector<int>> nvlinks;
  std::vector<std::vector<std::optional<bool>>> p2p;  ///< Empty: unknown.
};

/// Asks NVML about these GPUs; an empty list stands for all GPUs. Without a driver there are no GPUs.
DriverFacts driver_facts(std::vector<std::string> pci_bus_ids);

/// The network devices that have a PCI function: InfiniBand and RoCE first, each group in the order of names. A port
/// that has both an RDMA and an Ethernet name appears once, under its RDMA name.
std::vector<NicInfo> find_nics(const std::filesystem::path& sysfs = "/sys");

/// Adds processors, NUMA nodes, NICs and links from sysfs and procfs.
Machine describe_machine(const std::string& hostname, DriverFacts facts, const SystemFiles& files = {});

/// The nearest and the farthest two GPUs; of equal pairs the one with the lowest indices. nullopt: there are fewer than
/// two GPUs, or an unknown link could change the answer.
struct ComparedPairs {
  std::optional<GpuPair> nearest;
  std::optional<GpuPair> farthest;
  bool all_equal = false;  ///< There are at least two GPUs, and all pairs have the same known link.
};
ComparedPairs compare_pairs(const Machine& machine);

/// For each of `gpus`, the nearest NICs: through them it talks to other hosts. If there are InfiniBand or RoCE NICs,
/// only these count. Empty if links are unknown and there are several NICs.
std::vector<std::vector<std::string>> nics_of_gpus(const Machine& machine);

/// If there are InfiniBand or RoCE NICs, only these count. If links are unknown, all GPUs share a single NIC.
std::vector<SharedNics> shared_nics(const Machine& machine);

/// Tables for people: the matrix of links with its legend, GPUs, NICs, peer access, nearest and farthest pair.
std::string machine_text(const Machine& machine);

/// The same as JSON. Unknown values are null, or "unknown" in "links". docs/reference/topology.md lists the fields.
nlohmann::json machine_json(const Machine& machine);

/// A rank of this host, and the PCI bus id of its GPU.
struct RankOfGpu {
  int rank = 0;
  std::string pci;
};

/// A line, with the host's name and advice, for each group of ranks that talk to other hosts through fewer NICs than
/// they are. Reads sysfs alone.
std::vector<std::string> shared_nic_warnings(const std::string& hostname, const std::vector<RankOfGpu>& ranks,
                                             const SystemFiles& files = {});

/// A short label for the connection between the ranks of a job: "none" for one rank, "NET" between nodes, "host" on the
/// CPU, "GPU" if all share one; otherwise the farthest link between two GPUs of this node: NV#, PIX, PXB, PHB, NODE,
/// SYS, or "unknown" if the machine hides it. `gpus`: PCI bus ids of the GPUs of this node's ranks; empty on the CPU.
std::string topology_label(int ranks, int nodes, const std::vector<std::string>& gpus);

}  // namespace ddptrain
