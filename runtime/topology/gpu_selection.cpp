#include "runtime/topology/gpu_selection.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <regex>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "runtime/core/error.h"

namespace ddptrain {

namespace {

constexpr const char* kVariable = "CUDA_VISIBLE_DEVICES";

/// The entries of the variable as CUDA reads it: the list ends at the first entry that names no device. nullopt: unset.
std::optional<std::vector<std::string>> chosen_gpus() {
  const char* value = std::getenv(kVariable);
  if (value == nullptr) return std::nullopt;
  std::vector<std::string> entries;
  std::istringstream list(value);
  for (std::string entry; std::getline(list, entry, ',');) {
    entry.erase(std::remove(entry.begin(), entry.end(), ' '), entry.end());
    if (entry.empty() || entry[0] == '-') break;
    entries.push_back(entry);
  }
  return entries;
}

}  // namespace

int visible_gpus(const std::filesystem::path& devices) {
  if (const auto chosen = chosen_gpus()) return static_cast<int>(chosen->size());
  static const std::regex gpu_file("nvidia[0-9]+");
  std::error_code error;
  int count = 0;
  for (const auto& file : std::filesystem::directory_iterator(devices, error)) {
    if (std::regex_match(file.path().filename().string(), gpu_file)) ++count;
  }
  return count;
}

void show_only_gpu(int index) {
  const auto chosen = chosen_gpus();
  DDP_CHECK(index >= 0 && (!chosen || index < static_cast<int>(chosen->size())), "no visible GPU has index {}", index);
  const std::string entry = chosen ? chosen->at(static_cast<std::size_t>(index)) : std::to_string(index);
  setenv(kVariable, entry.c_str(), 1);
}

}  // namespace ddptrain
