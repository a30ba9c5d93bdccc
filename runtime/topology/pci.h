#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/topology/sysfs.h"

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

/// The labels of `nvidia-smi topo -m`: PIX, PXB, PHB, NODE or SYS; "unknown" for nullopt.
std::string label_of(std::optional<PcieAncestor> ancestor);

/// In the form of sysfs, 0000:1b:00.0; accepts any case and a domain of four or eight digits.
std::string normalized_pci_bus_id(const std::string& id);

/// NUMA node of a PCI device. nullopt: the machine does not show one (virtual machines, a single node).
std::optional<int> numa_node_of(const std::string& pci_bus_id, const std::filesystem::path& sysfs = "/sys");

/// The path from the root complex to the device: pci0000:15, 0000:15:01.0 (root port), 0000:16:00.0 (switch) ...,
/// 0000:18:00.0. Empty: sysfs does not show the device.
std::vector<std::string> pci_path(const std::string& pci_bus_id, const std::filesystem::path& sysfs = "/sys");

/// What /proc/cpuinfo says of the first processor under a name such as "model name"; empty: nothing.
std::string cpuinfo(const std::string& name, const std::filesystem::path& proc = "/proc");
bool in_virtual_machine(const std::filesystem::path& proc = "/proc");

/// Whether that level can be true. The PCIe tree of a virtual machine without NUMA nodes is not the real one, and
/// without NUMA nodes NODE and SYS cannot be distinguished.
bool is_believable(PcieAncestor ancestor, const std::string& a, const std::string& b, const SystemFiles& files = {});

/// The level at which two PCI devices meet, from their paths. nullopt: it is hidden or not believable.
std::optional<PcieAncestor> pcie_ancestor(const std::string& a, const std::string& b, const SystemFiles& files = {});

}  // namespace ddptrain
