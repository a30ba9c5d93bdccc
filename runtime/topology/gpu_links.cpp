#include "runtime/topology/gpu_links.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/topology/nvml.h"
#include "runtime/topology/pci.h"

namespace ddptrain {

namespace {

constexpr std::array<std::pair<PcieAncestor, const char*>, 6> kPcieLabels = {
    {{PcieAncestor::same_board, "PIX"},
     {PcieAncestor::one_switch, "PIX"},
     {PcieAncestor::several_switches, "PXB"},
     {PcieAncestor::host_bridge, "PHB"},
     {PcieAncestor::numa_node, "NODE"},
     {PcieAncestor::between_numa_nodes, "SYS"}}};

/// Larger is slower.
int slowness(const std::string& label) {
  if (label.rfind("NV", 0) == 0) return -std::stoi(label.substr(2));
  for (const auto& [ancestor, name] : kPcieLabels) {
    if (label == name) return static_cast<int>(ancestor) + 1;
  }
  return std::numeric_limits<int>::max();
}

bool in_virtual_machine() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("flags", 0) == 0) return line.find(" hypervisor") != std::string::npos;
  }
  return false;
}

/// What a virtual machine without NUMA nodes says of its PCIe tree has nothing to do with the real one; and without
/// NUMA nodes there is no telling NODE from SYS.
bool is_believable(PcieAncestor ancestor, const std::string& a, const std::string& b) {
  if (numa_node_of(a) && numa_node_of(b)) return true;
  return ancestor < PcieAncestor::numa_node && !in_virtual_machine();
}

int nvlinks_between(const Nvml::Links& a, const std::string& id_a, const Nvml::Links& b, const std::string& id_b) {
  const auto count = [](const auto& remotes, const auto& id) {
    return static_cast<int>(std::count(remotes.begin(), remotes.end(), id));
  };
  const int direct = std::min(count(a.peers, id_b), count(b.peers, id_a));
  return direct > 0 ? direct : std::min(a.to_switches, b.to_switches);
}

}  // namespace

std::string link_label(const GpuPair& pair) {
  if (pair.nvlinks > 0) return "NV" + std::to_string(pair.nvlinks);
  for (const auto& [ancestor, name] : kPcieLabels) {
    if (pair.ancestor == ancestor) return name;
  }
  return "unknown";
}

std::string slowest_link(const std::vector<std::string>& labels) {
  if (labels.empty()) return "unknown";
  return *std::max_element(labels.begin(), labels.end(),
                           [](const auto& a, const auto& b) { return slowness(a) < slowness(b); });
}

std::optional<std::vector<GpuPair>> gpu_pairs(const std::vector<std::string>& pci_bus_ids) {
  const auto nvml = Nvml::open();
  if (!nvml) return std::nullopt;
  std::vector<std::string> ids;
  std::vector<Nvml::Device> devices;
  std::vector<Nvml::Links> links;
  for (const auto& raw : pci_bus_ids) {
    ids.push_back(normalized_pci_bus_id(raw));
    devices.push_back(nvml->device(ids.back()));
    if (devices.back() == nullptr) return std::nullopt;
    links.push_back(nvml->links(devices.back()));
  }
  std::vector<GpuPair> pairs;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    for (std::size_t j = i + 1; j < ids.size(); ++j) {
      GpuPair pair;
      pair.nvlinks = nvlinks_between(links[i], ids[i], links[j], ids[j]);
      pair.ancestor = nvml->common_ancestor(devices[i], devices[j]);
      if (pair.ancestor && !is_believable(*pair.ancestor, ids[i], ids[j])) pair.ancestor.reset();
      pairs.push_back(pair);
    }
  }
  return pairs;
}

}  // namespace ddptrain
