#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ddptrain {

/// Levels at which two devices meet in the PCIe tree, from near to far, numbered as NVML does.
enum class PcieAncestor : int {
  same_board = 0,
  one_switch = 10,         // PIX
  several_switches = 20,   // PXB
  host_bridge = 30,        // PHB
  numa_node = 40,          // NODE
  between_numa_nodes = 50  // SYS
};

/// What is known of the way between two GPUs.
struct GpuPair {
  int nvlinks = 0;  ///< Active NVLinks between them: direct ones, else through switches, of the GPU that has fewer.
  std::optional<PcieAncestor> ancestor;  ///< Nothing where the machine hides its PCIe tree.
};

/// NV1, NV2 ...; PIX, PXB, PHB, NODE or SYS as `nvidia-smi topo -m` has them; "unknown" where hidden.
std::string link_label(const GpuPair& pair);

/// The slowest of the labels: of the NV# the one with the fewest links; "unknown" where any is unknown.
std::string slowest_link(const std::vector<std::string>& labels);

/// Asks NVML about every pair of these GPUs; nothing where there is no NVML or it does not know them.
std::optional<std::vector<GpuPair>> gpu_pairs(const std::vector<std::string>& pci_bus_ids);

}  // namespace ddptrain
