#pragma once

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace ddptrain {

/// The folders in which Linux describes the machine. Tests give folders of their own.
struct SystemFiles {
  std::filesystem::path sysfs = "/sys";
  std::filesystem::path proc = "/proc";
};

/// The first line of a file; empty if the file cannot be read.
std::string first_line(const std::filesystem::path& file);
/// Value at the start of a file; nullopt if it cannot be read or begins with something else.
template <class Value>
std::optional<Value> value_in(const std::filesystem::path& file) {
  Value value = {};
  std::ifstream in(file);
  return in >> value ? std::optional(value) : std::nullopt;
}
/// Entries of a folder, by name; none if it cannot be read.
std::vector<std::filesystem::path> sorted_entries(const std::filesystem::path& folder);

}  // namespace ddptrain
