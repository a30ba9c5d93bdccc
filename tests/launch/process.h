#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/core/error.h"
#include "tests/support/says.h"

namespace ddptrain {

struct Outcome {
  int exit_code = -1;
  std::string output;  ///< Standard output and error.

  bool says(const std::string& text) const { return ddptrain::says(output, text); }
  int count(const std::string& text) const { return occurrences(output, text); }
};

/// A path in the folder of the running test.
inline std::string temporary(const std::string& name) { return testing::TempDir() + name; }

inline std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// What a file of --metrics holds.
inline std::vector<nlohmann::json> json_lines(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

/// The last line; throws where there is none.
inline nlohmann::json summary_in(const std::string& path) {
  const auto lines = json_lines(path);
  return lines.at(lines.size() - 1);
}

inline Outcome run_command(const std::string& command) {
  FILE* pipe = popen(("exec 2>&1; " + command).c_str(), "r");
  if (pipe == nullptr) fail("cannot start {}", command);
  Outcome outcome;
  std::array<char, 4096> piece;
  while (const std::size_t count = std::fread(piece.data(), 1, piece.size(), pipe)) {
    outcome.output.append(piece.data(), count);
  }
  const int status = pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

/// ddptrain on `ranks` ranks of this machine's CPU; one rank without mpirun, which starts slower. `environment`:
/// assignments before the command.
inline Outcome train_on_cpu(int ranks, const std::string& arguments, const std::string& environment = "") {
  const std::string mpirun = ranks > 1 ? fmt::format("{} -np {}", DDP_MPIRUN, ranks) : "";
  return run_command(fmt::format("{} timeout 600 {} {} {}", environment, mpirun, DDPTRAIN_PROGRAM, arguments));
}

}  // namespace ddptrain
