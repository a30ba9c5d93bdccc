#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

#include "runtime/core/error.h"

namespace ddptrain {

struct Outcome {
  int exit_code = -1;
  std::string output;  ///< Standard output and error.

  bool hung() const { return exit_code == 124; }  ///< timeout(1) ended it.
  bool says(const std::string& text) const { return output.find(text) != std::string::npos; }
  int count(const std::string& text) const {
    int found = 0;
    for (auto at = output.find(text); at != std::string::npos; at = output.find(text, at + text.size())) ++found;
    return found;
  }
};

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

/// ddptrain on `ranks` ranks of this machine's CPU. `environment`: assignments before the command.
inline Outcome train_on_cpu(int ranks, const std::string& arguments, const std::string& environment = "") {
  return run_command(
      fmt::format("{} timeout 600 {} -np {} {} {}", environment, DDP_MPIRUN, ranks, DDPTRAIN_PROGRAM, arguments));
}

}  // namespace ddptrain
