#include "runtime/topology/pci.h"

#include <cctype>
#include <fstream>

namespace ddptrain {

std::string normalized_pci_bus_id(const std::string& id) {
  std::string lower;
  for (const char c : id) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower.find(':') == 8 && lower.rfind("0000", 0) == 0) lower.erase(0, 4);
  return lower;
}

std::optional<int> numa_node_of(const std::string& pci_bus_id, const std::filesystem::path& sysfs) {
  std::ifstream file(sysfs / "bus/pci/devices" / normalized_pci_bus_id(pci_bus_id) / "numa_node");
  int node = -1;
  if (!(file >> node) || node < 0) return std::nullopt;
  return node;
}

}  // namespace ddptrain
