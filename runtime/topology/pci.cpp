#include "runtime/topology/pci.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <system_error>

namespace ddptrain {

namespace {

/// Both paths come from pci_path() and are not empty.
std::string meeting_point(const std::vector<std::string>& a, const std::vector<std::string>& b, bool same_numa_node) {
  const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  const auto shared = static_cast<std::size_t>(end - a.begin());
  if (shared == 0) return same_numa_node ? "NODE" : "SYS";
  if (shared == 1) return "PHB";
  // A port of the switch lies between switch and device: the device's path has two more entries.
  return shared + 2 >= std::max(a.size(), b.size()) ? "PIX" : "PXB";
}

}  // namespace

std::string normalized_pci_bus_id(const std::string& id) {
  std::string lower;
  for (const char c : id) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower.find(':') == 8 && lower.rfind("0000", 0) == 0) lower.erase(0, 4);
  return lower;
}

std::optional<int> numa_node_of(const std::string& pci_bus_id, const std::filesystem::path& sysfs) {
  const auto node = value_in<int>(sysfs / "bus/pci/devices" / normalized_pci_bus_id(pci_bus_id) / "numa_node");
  return node.value_or(-1) >= 0 ? node : std::nullopt;
}

std::vector<std::string> pci_path(const std::string& pci_bus_id, const std::filesystem::path& sysfs) {
  std::error_code error;
  const auto device = sysfs / "bus/pci/devices" / normalized_pci_bus_id(pci_bus_id);
  const auto target = std::filesystem::canonical(device, error);
  if (error) return {};
  std::vector<std::string> path;
  for (const auto& part : target) {
    const std::string name = part.string();
    if (!path.empty() || (name.rfind("pci", 0) == 0 && name.find(':') != std::string::npos)) path.push_back(name);
  }
  return path;
}

std::string cpuinfo(const std::string& name, const std::filesystem::path& proc) {
  std::ifstream info(proc / "cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with(name) && colon != std::string::npos) return line.substr(colon + 2);
  }
  return {};
}

bool in_virtual_machine(const std::filesystem::path& proc) {
  return (" " + cpuinfo("flags", proc) + " ").find(" hypervisor ") != std::string::npos;
}

std::string pcie_label(const std::string& a, const std::string& b, const SystemFiles& files) {
  const auto path_a = pci_path(a, files.sysfs);
  const auto path_b = pci_path(b, files.sysfs);
  if (path_a.empty() || path_b.empty()) return "unknown";
  const auto node_a = numa_node_of(a, files.sysfs);
  const auto node_b = numa_node_of(b, files.sysfs);
  const std::string label = meeting_point(path_a, path_b, node_a == node_b);
  const bool within_host_bridge = label != "NODE" && label != "SYS";
  const bool believable = (node_a && node_b) || (within_host_bridge && !in_virtual_machine(files.proc));
  return believable ? label : "unknown";
}

}  // namespace ddptrain
