#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/topology/gpu_links.h"
#include "runtime/topology/pci.h"

namespace ddptrain {

/// A PCIe link: of a GPU at its fastest (at rest it runs slower), of a NIC as it runs.
struct PcieLink {
  int generation = 0;
  int width = 0;                   ///< Lanes.
  std::optional<double> gb_per_s;  ///< Theoretical, one direction.
};

struct GpuInfo {
  int index = 0;
  std::string name = "unknown";
  std::string pci;  ///< Normalized bus id.
  std::vector<std::string> pci_path;
  std::optional<int> numa_node;
  std::optional<std::string> cpu_affinity;  ///< As Linux writes lists: 0-31,64-95. Nothing where that is hidden.
  std::optional<PcieLink> pcie;
  int nvlinks = 0;                        ///< Active ones, to GPUs and switches.
  int nvlinks_to_switch = 0;              ///< Those of them that end at an NVSwitch.
  std::optional<double> nvlink_gb_per_s;  ///< Theoretical, one direction, of one link.
};

struct NicInfo {
  std::string name;  ///< mlx5_0, eth0 ...
  std::string pci;
  std::vector<std::string> pci_path;
  std::string kind;  ///< infiniband, roce or ethernet.
  std::optional<int> numa_node;
  std::optional<PcieLink> pcie;
  std::optional<double> speed_gbit;  ///< Of its fastest port.
};

struct NumaNode {
  int index = 0;
  std::optional<int> socket;  ///< Nothing where that is hidden, or it has memory only.
  std::string cpus;           ///< As Linux writes lists; empty: it has memory only.
};

/// GPUs whose nearest NICs are the same ones, and fewer than the GPUs.
struct SharedNics {
  std::vector<std::string> nics;
  std::vector<int> gpus;
};

/// A pair of GPUs by index, the lower one first.
struct GpuIndices {
  int a = 0;
  int b = 0;
};

/// What a host has and how it is joined. `links` and so on: rows and columns are the GPUs, then the NICs.
struct Machine {
  std::string hostname;
  std::string cpu_model = "unknown";
  int cpus = 0;                ///< Logical processors that are online.
  std::optional<int> sockets;  ///< Nothing where that is hidden.
  std::vector<NumaNode> numa_nodes;
  std::vector<GpuInfo> gpus;
  std::vector<NicInfo> nics;
  std::vector<std::vector<std::string>> links;               ///< X, NV#, PIX, PXB, PHB, NODE, SYS, "unknown".
  std::vector<std::vector<std::optional<double>>> gb_per_s;  ///< GPU x GPU, theoretical, one direction.
  std::vector<std::vector<std::optional<bool>>> p2p;         ///< GPU x GPU: a row's GPU can access the column's memory.
};

/// What a driver tells of the GPUs.
struct DriverFacts {
  std::vector<GpuInfo> gpus;                  ///< Without what sysfs tells: NUMA node, affinity, path.
  std::optional<std::vector<GpuPair>> pairs;  ///< As gpu_pairs() gives them; nothing: how they are joined is unknown.
  std::vector<std::vector<std::optional<bool>>> p2p;  ///< Empty: unknown.
};

/// Asks NVML about these GPUs, or with an empty list about all that it knows. No GPUs where there is no driver.
DriverFacts driver_facts(std::vector<std::string> pci_bus_ids);

/// Adds what sysfs and procfs tell: processors, NUMA nodes, NICs, and how everything is joined.
Machine describe_machine(const std::string& hostname, DriverFacts facts, const SystemFiles& files = {});

/// The two GPUs that are joined best, worst; of equal ones those with the lowest indices. Nothing with fewer than two
/// GPUs, and where links are unknown that could change the answer.
std::optional<GpuIndices> nearest_pair(const Machine& machine);
std::optional<GpuIndices> farthest_pair(const Machine& machine);
/// With at least two GPUs: whether every pair is joined in the same, known, way.
bool all_pairs_equal(const Machine& machine);

/// Counts InfiniBand and RoCE only where there are such. Where links are unknown: a single NIC is shared by all.
std::vector<SharedNics> shared_nics(const Machine& machine);

}  // namespace ddptrain
