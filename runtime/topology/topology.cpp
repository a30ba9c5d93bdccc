#include "runtime/topology/topology.h"

#include "runtime/topology/gpu_links.h"

namespace ddptrain {

std::string topology_label(int ranks, int nodes, const std::vector<std::string>& gpus) {
  if (ranks <= 1) return "none";
  if (nodes > 1) return "NET";
  if (gpus.empty()) return "host";
  const auto pairs = gpu_pairs(gpus);
  if (!pairs) return "unknown";
  std::vector<std::string> labels;
  for (const GpuPair& pair : *pairs) labels.push_back(link_label(pair));
  return slowest_link(labels);
}

}  // namespace ddptrain
