#include "launch/choose_device.h"

#include <set>

#include "runtime/core/error.h"
#include "runtime/core/printable.h"

namespace ddptrain {
namespace {

void require_enough(const World& world, int gpus) {
  if (world.local_size() <= gpus) return;
  usage_error(
      "{} on {}, but {} there, and each rank needs its own: start at most {} per host, or add "
      "--device cpu",
      counted(world.local_size(), "rank"), world.hostname(), counted(gpus, "GPU"), gpus);
}

}  // namespace

DeviceKind choose_device(const World& world, const std::string& device, std::optional<int> visible) {
  if (device == "cpu") return DeviceKind::cpu;
  const int seen = visible ? *visible : cuda_device_count();
  const int gpus = seen == 1 ? world.local_size() : seen;  // a launcher may show each rank its own only
  const bool everywhere = world.min(gpus) > 0;
  if (device == "auto" && !everywhere) return DeviceKind::cpu;
  world.agree([&] {
    if (!built_with_cuda()) usage_error("--device cuda: this program was built without CUDA. Use --device cpu.");
    if (gpus == 0) usage_error("--device cuda: no GPU is visible on {}. Use --device cpu.", world.hostname());
    require_enough(world, gpus);
  });
  return DeviceKind::cuda;
}

int own_gpu(const World& world) { return cuda_device_count() == 1 ? 0 : world.local_rank(); }

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

void require_own_gpus(const World& world, const std::string& pci_bus_id) {
  std::set<std::string> of_host;
  for (const RankOfGpu& rank : ranks_of_this_host(world, pci_bus_id)) of_host.insert(rank.pci);
  world.agree([&] { require_enough(world, static_cast<int>(of_host.size())); });
}

}  // namespace ddptrain
