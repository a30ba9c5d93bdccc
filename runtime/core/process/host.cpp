#include "runtime/core/process/host.h"

#include <spdlog/fmt/fmt.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/core/text.h"

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
    std::string name;
    std::string unit;
    std::uint64_t value = 0;
    if (!(words >> name >> value)) continue;
    words >> unit;
    numbers[name] = unit == "kB" ? 1024 * value : value;
  }
  return numbers;
}

/// Nothing if there is no such file, or if it says "max" or -1: no limit.
std::optional<std::uint64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  if (file.peek() == '-') return std::nullopt;
  std::uint64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

std::uint64_t left(std::uint64_t limit, std::uint64_t used) { return limit > used ? limit - used : 0; }

/// The kernel can drop pages of files, except those of shared memory.
std::uint64_t left_in(const fs::path& group) {
  const auto limit = number_in(group / "memory.max");
  const auto used = number_in(group / "memory.current");
  if (!limit || !used) return kNoLimit;
  auto stat = numbers_in(group / "memory.stat");
  return left(*limit, left(*used, left(stat["file"], stat["shmem"])));
}

/// The same of version 1, where no limit is a number beyond all memory.
std::uint64_t left_in_version_1(const fs::path& group) {
  const auto limit = number_in(group / "memory.limit_in_bytes");
  const auto used = number_in(group / "memory.usage_in_bytes");
  if (!limit || !used || *limit > kNoLimit / 4) return kNoLimit;
  auto stat = numbers_in(group / "memory.stat");
  return left(*limit, left(*used, left(stat["total_cache"], stat["total_shmem"])));
}

/// The least of all groups, of both versions: hosts in transition have both.
std::uint64_t left_in_cgroups(const fs::path& root) {
  std::uint64_t least = kNoLimit;
  for (const fs::path& group : cgroups_of_process(root, "")) least = std::min(least, left_in(group));
  for (const fs::path& group : cgroups_of_process(root, "memory")) least = std::min(least, left_in_version_1(group));
  return least;
}

}  // namespace

std::vector<fs::path> cgroups_of_process(const fs::path& root, const std::string& controller) {
  std::vector<fs::path> groups = {root / "sys/fs/cgroup" / controller};
  std::ifstream file(root / "proc/self/cgroup");  // 4:cpu,cpuacct:/GROUP/GROUP, and 0::/GROUP of version 2
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    if (controllers.find(fmt::format(",{},", controller)) == std::string::npos) continue;
    for (const fs::path& part : fs::path(line.substr(second + 1)).relative_path())
      groups.push_back(groups.back() / part);
    break;
  }
  return groups;
}

std::string system_host_name() {
  std::array<char, 256> name{};
  const bool known = gethostname(name.data(), name.size() - 1) == 0 && name.front() != '\0';
  return known ? name.data() : "host";
}

std::string boot_id() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return boot;
}

std::size_t available_host_memory(const fs::path& root) {
  const std::size_t memory = pinnable_host_memory(root);
  return memory == kNoLimit ? kNoLimit : memory + numbers_in(root / "proc/meminfo")["SwapFree:"];
}

std::size_t pinnable_host_memory(const fs::path& root) {
  auto host = numbers_in(root / "proc/meminfo");
  return std::min(host.count("MemAvailable:") > 0 ? host["MemAvailable:"] : kNoLimit, left_in_cgroups(root));
}

void require_host_memory(const std::string& what, std::uint64_t bytes, int ranks) {
  const std::size_t free = available_host_memory();
  if (bytes <= free) return;
  usage_error("{} would take {} of each rank, and {} are free for {} of this host. Give fewer.", what, size_text(bytes),
              size_text(free), counted(ranks, "rank"));
}

double seconds_since_process_start() {
  std::ifstream stat("/proc/self/stat");
  const std::string line{std::istreambuf_iterator<char>(stat), {}};
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;  // proc(5): field 22 is the start time
  double start_ticks = 0.0;
  fields >> start_ticks;
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  const double uptime = static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  return uptime - start_ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace ddptrain
