#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/topology/pci.h"

namespace ddptrain {

/// What is known of the way between two GPUs.
struct GpuPair {
  int nvlinks = 0;  ///< Active NVLinks between them: direct ones, else through switches, of the GPU that has fewer.
  std::optional<PcieAncestor> ancestor;  ///< Nothing where the machine hides its PCIe tree.
};

/// NV1, NV2 ..., else the label of the ancestor.
std::string link_label(const GpuPair& pair);

/// Orders labels by distance: NV# (the fewer links the farther), PIX, PXB, PHB, NODE, SYS, and "unknown" at the end.
int distance_of(const std::string& label);

/// The slowest of the labels: of the NV# the one with the fewest links; "unknown" where any is unknown.
std::string slowest_link(const std::vector<std::string>& labels);

/// Asks NVML about every pair of these GPUs; nothing where there is no NVML or it does not know them.
std::optional<std::vector<GpuPair>> gpu_pairs(const std::vector<std::string>& pci_bus_ids);

}  // namespace ddptrain
