#include "launch/app/topology_scripts.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "runtime/core/error.h"
#include "runtime/core/files/memory_file.h"

namespace ddptrain {

namespace {

using nlohmann::json;

constexpr int kNoMatplotlib = 3;  // exit codes of draw_topology.py
constexpr int kFullDisk = 4;
constexpr int kNotStarted = 127;

/// What a program has done with its standard input.
struct Outcome {
  int exit_code;
  std::string output;
  std::string errors;
};

Outcome run(std::vector<std::string> command, const std::string& input_text) {
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  const MemoryFile input("input"), output("output"), errors("errors");
  input.write(input_text);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.descriptor(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output.descriptor(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, errors.descriptor(), STDERR_FILENO);
  pid_t process = 0;
  const int error = posix_spawnp(&process, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return {kNotStarted, "", std::generic_category().message(error)};
  int status = 0;
  while (waitpid(process, &status, 0) < 0) {
    if (errno != EINTR) fail("waiting for {} failed", command[0]);
  }
  const int exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return {exit_code, output.text(), errors.text()};
}

/// `flags`: for which the script is needed.
std::string script(const char* flags, const char* name) {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto path = program.parent_path() / "ddptools" / name;
  if (!std::filesystem::exists(path, error)) {
    usage_error("{}: {} is not there. The build makes it a link to launch/ddptools.", flags, path.string());
  }
  return path.string();
}

}  // namespace

json report_nccl_log(const std::string& log, const NcclJob& job) {
  constexpr const char* kFlags = "--nccl, --parse";
  std::vector<std::string> command = {"python3", script(kFlags, "nccl/report.py")};
  if (job.joined_by_nvlink) command.emplace_back("--nvlink");
  command.insert(command.end(),
                 {"--environment", json(job.environment).dump(-1, ' ', false, json::error_handler_t::replace)});
  command.emplace_back("--unmentioned");
  command.insert(command.end(), job.unmentioned.begin(), job.unmentioned.end());
  const Outcome outcome = run(command, log);
  if (outcome.exit_code == kNotStarted) {
    usage_error("{}: NCCL's log is read by python3, which is not here ({}). Install it.", kFlags, outcome.errors);
  }
  if (outcome.exit_code != 0) fail("{} failed: {}", command[1], Lines{outcome.errors});
  return json::parse(outcome.output);
}

void draw_topology(const std::string& json, const std::string& svg, const std::string& png) {
  const std::string path = script("--svg, --png", "pictures/draw_topology.py");
  // The distribution's matplotlib belongs to the distribution's Python, which need not be the first one in PATH.
  for (const char* python : {"python3", "/usr/bin/python3"}) {
    std::vector<std::string> command = {python, path};
    if (!svg.empty()) command.insert(command.end(), {"--svg", svg});
    if (!png.empty()) command.insert(command.end(), {"--png", png});
    const Outcome outcome = run(command, json);
    if (outcome.exit_code == 0) return;
    if (outcome.exit_code == kNoMatplotlib || outcome.exit_code == kNotStarted) continue;
    const Lines reason{outcome.errors.substr(0, outcome.errors.find_last_not_of('\n') + 1)};
    if (outcome.exit_code == kFullDisk) fail("--svg, --png: {}", reason);
    usage_error("--svg, --png: {}", reason);
  }
  usage_error(
      "--svg, --png: drawings take python3 with matplotlib, which is not here. On Debian and Ubuntu: apt-get install "
      "python3-matplotlib (elsewhere: pip install matplotlib). --json needs neither.");
}

}  // namespace ddptrain
