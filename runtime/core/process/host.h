#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace ddptrain {

/// Name of the machine or container, from the system, so it is known before MPI starts; "host" if there is none.
/// Job-wide names are World::hostname().
std::string system_host_name();

/// The kernel's name for this start of the machine. Containers and emulated hosts of a machine have the same. Empty:
/// not known.
std::string boot_id();

/// Bytes that the processes of this host, or of the cgroup (version 1 or 2) that limits this one, can still take
/// without that others are ended: what Linux calls available, and swap. `root`: where /proc and /sys are.
std::size_t available_host_memory(const std::filesystem::path& root = "/");
/// The same without swap, which pinned memory cannot use.
std::size_t pinnable_host_memory(const std::filesystem::path& root = "/");
/// UsageError if this process cannot take that many bytes, for `what`. The message says that all `ranks` of the host
/// take them. They do so at different times, and what one has taken is not free for the next.
void require_host_memory(const std::string& what, std::uint64_t bytes, int ranks);

/// The folders of this process's cgroup and of the groups around it, from the outermost on. They may not exist.
/// `controller`: of version 1, such as "memory"; empty: of version 2. In a container the mount is the group itself, and
/// the path is that of outside.
std::vector<std::filesystem::path> cgroups_of_process(const std::filesystem::path& root = "/",
                                                      const std::string& controller = "");

/// Seconds since the operating system started this process.
double seconds_since_process_start();

}  // namespace ddptrain
