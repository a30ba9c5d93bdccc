#include "launch/app/job/choose_device.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "runtime/core/error.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

void require_enough(const World& world, int gpus) {
  if (world.local_size() <= gpus) return;
  usage_error(
      "{} on {}, but {} there, and each rank needs its own: start at most {} per host, or add --share-gpu (ranks share "
      "GPUs)",
      counted(world.local_size(), "rank"), world.hostname(), counted(gpus, "GPU"), gpus);
}

}  // namespace

void let_ranks_share_gpus() { setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1); }

DeviceKind choose_device(const World& world, const std::string& device, bool share, std::optional<int> visible) {
  if (device == "cpu") return DeviceKind::cpu;
  const int seen = visible ? *visible : cuda_device_count();
  const int gpus = seen == 1 ? world.local_size() : seen;  // a launcher may show each rank its own only
  const bool everywhere = world.min(gpus) > 0;
  if (device == "auto" && !everywhere && !share) return DeviceKind::cpu;
  const char* flag = device == "auto" ? "--share-gpu" : "--device cuda";
  world.agree([&] {
    if (!built_with_cuda()) usage_error("{}: this program was built without CUDA. Use --device cpu.", flag);
    if (gpus == 0) usage_error("{}: no GPU is visible on {}. Use --device cpu.", flag, world.hostname());
    if (!share) require_enough(world, gpus);
  });
  return DeviceKind::cuda;
}

int own_gpu(const World& world) { return world.local_rank() % std::max(cuda_device_count(), 1); }

std::vector<RankOfGpu> ranks_of_this_host(const World& world, const std::string& pci_bus_id) {
  const std::string host = std::to_string(world.node()) + ' ';
  std::vector<RankOfGpu> ranks;
  int rank = 0;
  for (const std::string& text : world.all_gather(host + pci_bus_id)) {
    if (text.rfind(host, 0) == 0) ranks.push_back({rank, text.substr(host.size())});
    ++rank;
  }
  return ranks;
}

GpusOfJob use_gpus(const World& world, const std::string& pci_bus_id, bool share) {
  std::set<std::string> of_host;
  GpusOfJob use;
  int sharing = 0;
  for (const RankOfGpu& rank : ranks_of_this_host(world, pci_bus_id)) {
    of_host.insert(rank.pci);
    if (rank.pci != pci_bus_id) continue;
    if (sharing++ == 0) use.is_first = rank.rank == world.rank();
  }
  world.agree([&] {
    if (!share) require_enough(world, static_cast<int>(of_host.size()));
  });
  const int gpus = static_cast<int>(world.sum(use.is_first ? 1.0 : 0.0));
  if (gpus < world.size()) use.shared = gpus;
  use.ranks_per_gpu = static_cast<int>(world.max(sharing));
  return use;
}

}  // namespace ddptrain
