#pragma once

#include <cstddef>
#include <filesystem>

namespace ddptrain {

/// Bytes that the processes of this host, or of the cgroup that limits this one, can still take without that others are
/// ended: what Linux calls available, and swap. `root`: where /proc and /sys are.
std::size_t available_host_memory(const std::filesystem::path& root = "/");

}  // namespace ddptrain
