#include "runtime/topology/gpu_links.h"

#include <algorithm>
#include <limits>

#include "runtime/topology/nvml.h"
#include "runtime/topology/pci.h"

namespace ddptrain {

namespace {

int nvlinks_between(const Nvml::Links& a, const std::string& id_a, const Nvml::Links& b, const std::string& id_b) {
  const auto count = [](const auto& remotes, const auto& id) {
    return static_cast<int>(std::count(remotes.begin(), remotes.end(), id));
  };
  const int direct = std::min(count(a.peers, id_b), count(b.peers, id_a));
  return direct > 0 ? direct : std::min(a.to_switches, b.to_switches);
}

}  // namespace

std::string link_label(const GpuPair& pair) {
  return pair.nvlinks > 0 ? "NV" + std::to_string(pair.nvlinks) : label_of(pair.ancestor);
}

int distance_of(const std::string& label) {
  if (label.rfind("NV", 0) == 0) return -std::stoi(label.substr(2));
  for (const auto level : {PcieAncestor::one_switch, PcieAncestor::several_switches, PcieAncestor::host_bridge,
                           PcieAncestor::numa_node, PcieAncestor::between_numa_nodes}) {
    if (label == label_of(level)) return static_cast<int>(level);
  }
  return std::numeric_limits<int>::max();
}

std::string slowest_link(const std::vector<std::string>& labels) {
  if (labels.empty()) return "unknown";
  return *std::max_element(labels.begin(), labels.end(),
                           [](const auto& a, const auto& b) { return distance_of(a) < distance_of(b); });
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
