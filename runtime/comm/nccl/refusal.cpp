#include "runtime/comm/nccl/refusal.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace ddptrain {
namespace {

constexpr int kSharedGpus = 23000;  // the first NCCL that takes several ranks per GPU

/// Set by this program, by launchers of containers, or for the log alone.
bool is_users_choice(std::string_view variable) {
  if (!variable.starts_with("NCCL_")) return false;
  for (const char* other : {"NCCL_DEBUG", "NCCL_GRAPH_REGISTER=0", "NCCL_MULTI_RANK_GPU_ENABLE=", "NCCL_VERSION="}) {
    if (variable.starts_with(other)) return false;
  }
  return true;
}

}  // namespace

std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string nccl_place(int node, const std::string& pci_bus_id) {
  const char* host = std::getenv("NCCL_HOSTID");
  return host != nullptr ? fmt::format("{} {}", host, pci_bus_id) : fmt::format("node {} {}", node, pci_bus_id);
}

std::string nccl_settings() {
  std::vector<std::string> found;
  for (char** each = environ; *each != nullptr; ++each) {
    if (is_users_choice(*each)) found.emplace_back(*each);
  }
  std::ranges::sort(found);
  return fmt::format("{}", fmt::join(found, ", "));
}

std::string nccl_refusal(const std::string& what, const std::string& reason) {
  const std::string settings = nccl_settings();
  if (settings.empty()) return fmt::format("NCCL {}: {}. NCCL_DEBUG=INFO shows more.", what, reason);
  return fmt::format("NCCL {} with {}: {}. Change these variables, or unset them.", what, settings, reason);
}

std::string nccl_does_not_start(int version, std::vector<std::string> places, const std::string& reason) {
  std::ranges::sort(places);
  const bool shared = std::ranges::adjacent_find(places) != places.end();
  if (!shared || version >= kSharedGpus) return nccl_refusal("does not start", reason);
  return fmt::format(
      "NCCL {} takes one rank per GPU; several need NCCL 2.30 or newer. Use --comm mpi, or a newer NCCL.",
      nccl_version_text(version));
}

}  // namespace ddptrain
