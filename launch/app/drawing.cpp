#include "launch/app/drawing.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/core/memory_file.h"

namespace ddptrain {

namespace {

constexpr int kNoMatplotlib = 3;  // draw_topology.py's exit code for it
constexpr int kNotStarted = 127;

/// Runs a program with `input` as its standard input and `errors` as its standard error; returns its exit code.
int run(std::vector<std::string> command, const MemoryFile& input, const MemoryFile& errors) {
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.descriptor(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, errors.descriptor(), STDERR_FILENO);
  pid_t process = 0;
  const int error = posix_spawnp(&process, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return kNotStarted;
  int status = 0;
  while (waitpid(process, &status, 0) < 0) {
    if (errno != EINTR) fail("waiting for {} failed", command[0]);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string script() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto path = program.parent_path() / "ddptools" / "pictures" / "draw_topology.py";
  if (!std::filesystem::exists(path, error)) {
    usage_error("--svg, --png: {} is not there. The build makes it a link to launch/ddptools.", path.string());
  }
  return path.string();
}

}  // namespace

void draw_topology(const std::string& json, const std::string& svg, const std::string& png) {
  const MemoryFile input("topology.json");
  const MemoryFile errors("errors");
  DDP_CHECK(input.is_open() && errors.is_open(), "no file in memory to be had");
  const std::string path = script();
  // The distribution's matplotlib belongs to the distribution's Python, which need not be the first one in PATH.
  for (const char* python : {"python3", "/usr/bin/python3"}) {
    std::vector<std::string> command = {python, path};
    if (!svg.empty()) command.insert(command.end(), {"--svg", svg});
    if (!png.empty()) command.insert(command.end(), {"--png", png});
    input.write(json);
    const int exit_code = run(command, input, errors);
    if (exit_code == 0) return;
    if (exit_code != kNoMatplotlib && exit_code != kNotStarted) {
      const std::string reason = errors.text();
      usage_error("--svg, --png: {}", reason.substr(0, reason.find_last_not_of('\n') + 1));
    }
  }
  usage_error(
      "--svg, --png: drawings take python3 with matplotlib, which is not here. On Debian and Ubuntu: apt-get install "
      "python3-matplotlib (elsewhere: pip install matplotlib). --json needs neither.");
}

}  // namespace ddptrain
