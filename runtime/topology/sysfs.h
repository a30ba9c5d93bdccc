#pragma once

#include <filesystem>
#include <string>

namespace ddptrain {

/// Where a machine describes itself. Tests put a tree of their own there.
struct SystemFiles {
  std::filesystem::path sysfs = "/sys";
  std::filesystem::path proc = "/proc";
};

/// Empty where the file cannot be read.
std::string first_line(const std::filesystem::path& file);

}  // namespace ddptrain
