#include "runtime/comm/mpi/shared_memory_files.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>

namespace ddptrain {

std::vector<std::string> mapped_mpi_segments() {
  std::set<std::string> paths;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const auto begin = line.find("/dev/shm/vader_segment.");
    if (begin != std::string::npos) paths.insert(line.substr(begin));
  }
  return {paths.begin(), paths.end()};
}

std::string unlink_own_segment(const std::vector<std::string>& segments, int local_rank) {
  const std::string ending = fmt::format(".{}", local_rank);
  const auto own = [&](const std::string& path) { return path.ends_with(ending); };
  if (std::count_if(segments.begin(), segments.end(), own) != 1) return {};
  const std::string path = *std::find_if(segments.begin(), segments.end(), own);
  return unlink(path.c_str()) == 0 ? path : std::string();
}

void restore_segment(const std::string& path) {
  if (path.empty()) return;
  const int file = open(path.c_str(), O_CREAT | O_EXCL | O_CLOEXEC | O_WRONLY, 0600);
  if (file >= 0) close(file);
}

}  // namespace ddptrain
