#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/topology/pci.h"

namespace ddptrain {

/// How two GPUs are connected, as far as the machine shows it.
struct GpuPair {
  int nvlinks = 0;  ///< Active NVLinks between them; through switches: the number of the GPU that has fewer.
  std::optional<PcieAncestor> ancestor;  ///< nullopt: the machine hides its PCIe tree.
};

/// NV1, NV2 ... where NVLinks connect them; otherwise the label of the ancestor.
std::string link_label(const GpuPair& pair);

/// Orders labels from near to far: NV# (fewer links are farther), PIX, PXB, PHB, NODE, SYS, "unknown".
int distance_of(const std::string& label);

/// The farthest of the labels; "unknown" if any of them is unknown.
std::string slowest_link(const std::vector<std::string>& labels);

/// Asks NVML about every pair of these GPUs. nullopt: there is no NVML, or it does not know them.
std::optional<std::vector<GpuPair>> gpu_pairs(const std::vector<std::string>& pci_bus_ids);

}  // namespace ddptrain
