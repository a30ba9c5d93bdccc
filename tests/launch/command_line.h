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

/// Of a line of words with spaces between them.
inline std::string message_of_line(const std::string& line) {
  const std::vector<std::string> words = words_of(line);
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  return message_of(arguments);
}

inline std::string file_with(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

}  // namespace ddptrain
