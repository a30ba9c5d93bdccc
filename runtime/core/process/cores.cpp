#include "runtime/core/process/cores.h"

#include <fcntl.h>
#include <sched.h>
#include <spdlog/fmt/fmt.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include "runtime/core/process/host.h"

namespace ddptrain {
namespace {

/// Cores of a CPU quota: its time per period. "max 100000" (version 2) and -1 (version 1) are no quota.
std::optional<double> cores_of_quota(const std::filesystem::path& group) {
  std::ifstream both(group / "cpu.max");
  std::ifstream quota_only(group / "cpu.cfs_quota_us");
  std::ifstream period_only(group / "cpu.cfs_period_us");
  double quota = 0.0;
  double period = 0.0;
  const bool known = (both >> quota >> period) || ((quota_only >> quota) && (period_only >> period));
  if (!known || quota <= 0.0 || period <= 0.0) return std::nullopt;
  return quota / period;
}

double seconds_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

CoreWait::CoreWait() : file_(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)), last_(read()) {}

CoreWait::~CoreWait() {
  if (file_ >= 0) close(file_);
}

CoreWait::Reading CoreWait::read() const {
  Reading now{seconds_of(CLOCK_MONOTONIC), seconds_of(CLOCK_THREAD_CPUTIME_ID), 0.0, 0};
  rusage usage{};
  if (getrusage(RUSAGE_THREAD, &usage) == 0) now.sleeps = usage.ru_nvcsw;
  std::array<char, 96> text{};
  if (file_ < 0 || pread(file_, text.data(), text.size() - 1, 0) <= 0) return now;
  unsigned long long ran = 0, waited = 0;  // nanoseconds
  if (std::sscanf(text.data(), "%llu %llu", &ran, &waited) == 2) now.waited = 1e-9 * static_cast<double>(waited);
  return now;
}

double CoreWait::seconds() {
  const Reading now = read();
  const double without_core = now.clock - last_.clock - (now.cpu - last_.cpu);
  seconds_ += now.sleeps == last_.sleeps ? std::max(without_core, 0.0) : now.waited - last_.waited;
  last_ = now;
  return seconds_;
}

std::set<int> allowed_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::set<int> cores;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.insert(core);
  }
  return cores;
}

std::optional<double> core_limit(const std::filesystem::path& root) {
  std::optional<double> least;
  for (const char* controller : {"", "cpu"}) {
    for (const std::filesystem::path& group : cgroups_of_process(root, controller)) {
      const std::optional<double> cores = cores_of_quota(group);
      if (cores) least = std::min(least.value_or(*cores), *cores);
    }
  }
  return least;
}

int usable_cores(const std::filesystem::path& root) {
  std::set<std::string> cores;
  for (const int processor : allowed_cores()) {
    const auto topology = fmt::format("sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", processor);
    std::string siblings;
    std::getline(std::ifstream(root / topology), siblings);
    cores.insert(siblings.empty() ? std::to_string(processor) : siblings);
  }
  const auto count = static_cast<double>(cores.size());
  return std::max(1, static_cast<int>(std::ceil(std::min(count, core_limit(root).value_or(count)))));
}

std::optional<double> busy_seconds(const std::set<int>& cores, const std::filesystem::path& root) {
  std::ifstream stat(root / "proc/stat");
  std::size_t found = 0;
  double ticks = 0.0;
  double idle_ticks = 0.0;
  for (std::string line; std::getline(stat, line);) {
    int core = -1;
    if (std::sscanf(line.c_str(), "cpu%d", &core) != 1 || !cores.contains(core)) continue;
    std::istringstream numbers(line);
    std::string name;
    double user = 0.0, nice = 0.0, system = 0.0, idle = 0.0, disk = 0.0, irq = 0.0, softirq = 0.0, steal = 0.0;
    if (!(numbers >> name >> user >> nice >> system >> idle >> disk >> irq >> softirq >> steal)) continue;
    ++found;
    ticks += user + nice + system + irq + softirq + steal;
    idle_ticks += idle + disk;
  }
  if (found == 0 || found != cores.size() || ticks + idle_ticks == 0.0) return std::nullopt;
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double process_cpu_seconds() { return seconds_of(CLOCK_PROCESS_CPUTIME_ID); }

}  // namespace ddptrain
