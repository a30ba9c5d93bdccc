#include "runtime/core/process/host.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <string>

namespace ddptrain {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

/// Lines such as "MemAvailable:  123 kB" and "file 123", by their first word.
std::map<std::string, std::uint64_t> numbers_in(const fs::path& path) {
  std::map<std::string, std::uint64_t> numbers;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, unit;
    std::uint64_t value = 0;
    if (!(words >> name >> value)) continue;
    words >> unit;
    numbers[name] = unit == "kB" ? 1024 * value : value;
  }
  return numbers;
}

/// Nothing if there is no such file; "max" is no limit.
std::optional<std::uint64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  if (word == "max") return kNoLimit;
  return std::strtoull(word.c_str(), nullptr, 10);
}

std::uint64_t left(std::uint64_t limit, std::uint64_t used) { return limit > used ? limit - used : 0; }

/// The files of a version of cgroups.
struct Names {
  const char* limit;
  const char* used;
  const char* cache;   ///< In memory.stat: pages of files, which the kernel can drop,
  const char* shared;  ///< except pages of shared memory.
};
constexpr Names kVersion2 = {"memory.max", "memory.current", "file", "shmem"};
constexpr Names kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem"};

std::uint64_t left_in(const fs::path& group, const Names& names) {
  const auto limit = number_in(group / names.limit);
  const auto used = number_in(group / names.used);
  if (!limit || !used) return kNoLimit;
  auto stat = numbers_in(group / "memory.stat");
  return left(*limit, left(*used, left(stat[names.cache], stat[names.shared])));
}

/// Least memory that is left in the group at `path` and in the groups around it.
std::uint64_t least_left(const fs::path& mount, const fs::path& path, const Names& names) {
  std::uint64_t least = left_in(mount, names);
  fs::path group = mount;
  for (const fs::path& part : path.relative_path()) {
    group /= part;
    least = std::min(least, left_in(group, names));
  }
  return least;
}

std::uint64_t left_in_cgroups(const fs::path& root) {
  const fs::path mount = root / "sys/fs/cgroup";
  std::uint64_t least = kNoLimit;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // number:controllers:path
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path path = line.substr(second + 1);
    if (controllers.empty()) least = std::min(least, least_left(mount, path, kVersion2));
    if (controllers == "memory") least = std::min(least, least_left(mount / "memory", path, kVersion1));
  }
  return least;
}

}  // namespace

std::string system_host_name() {
  std::array<char, 256> name{};
  const bool known = gethostname(name.data(), name.size() - 1) == 0 && name.front() != '\0';
  return known ? name.data() : "host";
}

std::size_t available_host_memory(const fs::path& root) {
  auto host = numbers_in(root / "proc/meminfo");
  const std::uint64_t in_groups = left_in_cgroups(root);
  const std::uint64_t memory = std::min(host.count("MemAvailable:") > 0 ? host["MemAvailable:"] : kNoLimit, in_groups);
  return memory == kNoLimit ? kNoLimit : memory + host["SwapFree:"];
}

}  // namespace ddptrain
