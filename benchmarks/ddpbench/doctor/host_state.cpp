#include "benchmarks/ddpbench/doctor/host_state.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/core/files/mapped_file.h"
#include "runtime/core/hash.h"

namespace ddptrain::bench {
namespace {

/// Regular files, by their names.
std::vector<std::filesystem::path> files_in(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) return {path};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path, error)) {
    if (entry.is_regular_file(error)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

HostFact data_fact(const std::filesystem::path& path) {
  Hash128 hash;
  std::int64_t bytes = 0;
  const auto files = files_in(path);
  for (const auto& file : files) {
    hash.add(file.lexically_relative(path).string());
    if (std::filesystem::file_size(file) == 0) continue;
    const MappedFile content(file);
    hash.add(content.data(), content.size());
    bytes += static_cast<std::int64_t>(content.size());
  }
  const std::string value =
      files.empty() ? "missing" : fmt::format("{} files of {} bytes (XXH3 {})", files.size(), bytes, hash.hex());
  return {fmt::format("the data in {}", path.string()), value, "Copy the same files to all hosts"};
}

std::uint64_t resent_segments() {
  std::ifstream table("/proc/self/net/snmp");
  std::string names, values;
  while (std::getline(table, names) && std::getline(table, values)) {
    if (names.rfind("Tcp:", 0) != 0) continue;
    std::istringstream of_names(names), of_values(values);
    std::string name, value;
    while (of_names >> name && of_values >> value) {
      if (name == "RetransSegs") return std::stoull(value);
    }
  }
  return 0;
}

}  // namespace ddptrain::bench
