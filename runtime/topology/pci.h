#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace ddptrain {

/// As sysfs writes it, 0000:1b:00.0, from any case and a domain of four or eight digits.
std::string normalized_pci_bus_id(const std::string& id);

/// NUMA node of a PCI device; nothing where the machine does not show one (virtual machines, a single node).
std::optional<int> numa_node_of(const std::string& pci_bus_id, const std::filesystem::path& sysfs = "/sys");

}  // namespace ddptrain
