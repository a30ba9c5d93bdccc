#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/topology/sysfs.h"

namespace ddptrain {

/// In the form of sysfs, 0000:1b:00.0; accepts any case and a domain of four or eight digits.
std::string normalized_pci_bus_id(const std::string& id);

/// NUMA node of a PCI device. nullopt: the machine does not show one (virtual machines, a single node).
std::optional<int> numa_node_of(const std::string& pci_bus_id, const std::filesystem::path& sysfs = "/sys");

/// The path from the root complex to the device: pci0000:15, 0000:15:01.0 (root port), 0000:16:00.0 (switch) ...,
/// 0000:18:00.0. Empty: sysfs does not show the device.
std::vector<std::string> pci_path(const std::string& pci_bus_id, const std::filesystem::path& sysfs = "/sys");

/// Value in /proc/cpuinfo for the first processor under a name such as "model name"; empty: none.
std::string cpuinfo(const std::string& name, const std::filesystem::path& proc = "/proc");
bool in_virtual_machine(const std::filesystem::path& proc = "/proc");

/// Where two PCI devices meet, by the labels of `nvidia-smi topo -m`: PIX, PXB, PHB, NODE or SYS. "unknown" if sysfs
/// does not show it or if it may be wrong: the PCIe tree of a virtual machine without NUMA nodes is not the real one,
/// and without NUMA nodes NODE and SYS cannot be distinguished.
std::string pcie_label(const std::string& a, const std::string& b, const SystemFiles& files = {});

}  // namespace ddptrain
