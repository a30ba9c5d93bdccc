#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ddptrain {

/// Orders labels from near to far: NV# (fewer links are farther), PIX, PXB, PHB, NODE, SYS, "unknown".
int distance_of(const std::string& label);

/// The farthest of the labels; "unknown" if any of them is unknown.
std::string slowest_link(const std::vector<std::string>& labels);

// Theoretical rates of links in GB/s (1e9 bytes), one direction, as manufacturers publish them. nullopt: unknown.

/// A PCIe link; x16 of generation 4, 5, 6, 7 carries 31, 63, 121, 242 GB/s.
std::optional<double> pcie_gb_per_s(int generation, int width);

/// One NVLink; the 6, 12, 18 links of a GPU of generation 2, 3, 4 carry 150, 300, 450 GB/s together.
std::optional<double> nvlink_gb_per_s(int generation);

}  // namespace ddptrain
