#include "runtime/train/replica/replica_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/ops/checksum.h"

namespace ddptrain {

namespace {

std::vector<StateArray> replicated_arrays(const TrainingState& state) {
  std::vector<StateArray> arrays = state.arrays();
  std::erase_if(arrays, [](const StateArray& array) { return array.placement != Placement::replicated; });
  return arrays;
}

/// The checksum of each array, as bytes.
std::string checksums(const std::vector<StateArray>& arrays, Device& device) {
  const Buffer sums = device.allocate(arrays.size() * sizeof(std::uint64_t));
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    device.get<ChecksumOps>().add_checksum(arrays[i].pieces.at(0).values, static_cast<std::uint64_t*>(sums.data()) + i);
  }
  std::string bytes(sums.bytes(), '\0');
  device.copy_to_host(bytes.data(), sums.data(), bytes.size());
  return bytes;
}

/// The value of more than half of the ranks. Empty if there is none.
std::string held_by_most(const std::vector<std::string>& of_ranks) {
  for (const std::string& one : of_ranks) {
    if (2 * std::ranges::count(of_ranks, one) > static_cast<std::ptrdiff_t>(of_ranks.size())) return one;
  }
  return {};
}

/// The index of the first different checksum of two ranks.
std::size_t first_difference(const std::string& a, const std::string& b) {
  const auto place = std::ranges::mismatch(a, b).in1 - a.begin();
  return static_cast<std::size_t>(place) / sizeof(std::uint64_t);
}

std::string differences(const std::vector<std::string>& of_ranks, const std::vector<std::string>& hosts,
                        const std::vector<StateArray>& arrays) {
  const std::string most = held_by_most(of_ranks);
  std::string text;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const std::string& expected = most.empty() ? of_ranks.front() : most;
    if (of_ranks[rank] == expected) continue;
    const std::string& name = arrays.at(first_difference(of_ranks[rank], expected)).name;
    text += text.empty() ? "" : "; ";
    text += most.empty() ? fmt::format("rank {} ({}) from rank 0 ({}) in {}", rank, hosts[rank], hosts[0], name)
                         : fmt::format("rank {} ({}) from most ranks in {}", rank, hosts[rank], name);
  }
  return text;
}

/// Compares `arrays` over the ranks of `world`.
std::string differences_of(const std::vector<StateArray>& arrays, const World& world, Device& device) {
  if (world.size() == 1) return {};
  const std::vector<std::string> of_ranks = world.all_gather(checksums(arrays, device));
  return differences(of_ranks, world.all_gather(world.hostname()), arrays);
}

}  // namespace

std::string differing_replicas(const TrainingState& state, const World* replicas, const TensorGroup* group,
                               Device& device) {
  std::vector<StateArray> arrays = replicated_arrays(state);
  std::string difference = replicas == nullptr ? "" : differences_of(arrays, *replicas, device);
  if (group == nullptr) return difference;
  std::erase_if(arrays, [](const StateArray& array) { return !array.slice.has_all(); });
  const std::string of_group = differences_of(arrays, group->ranks(), device);
  return difference.empty() ? of_group : difference;
}

void check_same_on_all_ranks(const World& world, const std::string& hash, const std::string& what) {
  const std::string difference = differences(world.all_gather(hash));
  world.agree([&] {
    if (!difference.empty()) fail("{} differ: {}", what, difference);
  });
}

}  // namespace ddptrain
