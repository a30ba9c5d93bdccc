#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "launch/app/flags/options.h"
#include "tests/support/says.h"

namespace ddptrain {

inline CommandLine parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "ddptrain");
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

/// Of the UsageError.
inline std::string message_of(const std::vector<const char*>& arguments) {
  return error_message([&] { parse(arguments); });
}

inline std::string file_with(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

}  // namespace ddptrain
