#include "runtime/core/process/cores.h"

#include <fcntl.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include "runtime/core/process/host.h"

namespace ddptrain {

CoreWait::CoreWait() : file_(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {}

CoreWait::~CoreWait() {
  if (file_ >= 0) close(file_);
}

double CoreWait::seconds() const {
  std::array<char, 96> text{};
  if (file_ < 0 || pread(file_, text.data(), text.size() - 1, 0) <= 0) return 0.0;
  unsigned long long ran = 0, waited = 0;  // nanoseconds
  return std::sscanf(text.data(), "%llu %llu", &ran, &waited) == 2 ? 1e-9 * static_cast<double>(waited) : 0.0;
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
  for (const std::filesystem::path& group : cgroups_of_process(root)) {
    std::ifstream file(group / "cpu.max");  // "max 100000" or "150000 100000"
    double quota = 0.0, period = 0.0;
    if (file >> quota >> period && period > 0.0) least = std::min(least.value_or(quota / period), quota / period);
  }
  return least;
}

std::optional<double> busy_seconds(const std::set<int>& cores, const std::filesystem::path& root) {
  std::ifstream stat(root / "proc/stat");
  std::size_t found = 0;
  double ticks = 0.0, idle_ticks = 0.0;
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

double process_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace ddptrain
