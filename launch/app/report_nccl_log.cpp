#include "launch/app/report_nccl_log.h"

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

/// What report.py prints for this input.
std::string output_of(std::vector<std::string> command, const std::string& input_text) {
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
  if (error != 0) {
    usage_error("--nccl, --parse: python3 reads NCCL's log, and it does not start ({}). Install it.",
                std::generic_category().message(error));
  }
  int status = 0;
  while (waitpid(process, &status, 0) < 0) {
    if (errno != EINTR) fail("waiting for {} failed", command[0]);
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail("{} failed: {}", command[1], errors.text());
  return output.text();
}

}  // namespace

json report_nccl_log(const std::string& log, const NcclJob& job) {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto script = program.parent_path() / "ddptools/nccl/report.py";
  if (!std::filesystem::exists(script, error)) {
    usage_error("--nccl, --parse: {} is missing. The build makes it a link to launch/ddptools.", script.string());
  }
  std::vector<std::string> command = {"python3", script.string()};
  if (job.joined_by_nvlink) command.emplace_back("--nvlink");
  command.insert(command.end(),
                 {"--environment", json(job.environment).dump(-1, ' ', false, json::error_handler_t::replace)});
  command.emplace_back("--unmentioned");
  command.insert(command.end(), job.unmentioned.begin(), job.unmentioned.end());
  return json::parse(output_of(command, log));
}

}  // namespace ddptrain
