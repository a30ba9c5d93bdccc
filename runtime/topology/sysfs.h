#pragma once

#include <filesystem>
#include <string>

namespace ddptrain {

/// The folders in which Linux describes the machine. Tests give folders of their own.
struct SystemFiles {
  std::filesystem::path sysfs = "/sys";
  std::filesystem::path proc = "/proc";
};

/// The first line of a file; empty if the file cannot be read.
std::string first_line(const std::filesystem::path& file);

}  // namespace ddptrain
