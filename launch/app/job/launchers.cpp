#include "launch/app/job/launchers.h"

#include <unistd.h>

#include <cstdlib>
#include <optional>

#include "runtime/comm/world.h"
#include "runtime/core/error.h"

namespace ddptrain {
namespace {

/// A launcher that gives each process these variables. `command` starts one job of {0} ranks of {1}. `shells`: a shell
/// at a terminal may have inherited the variables.
struct Launcher {
  const char* name;
  const char* size;
  const char* rank;
  const char* command;
  bool shells;
};

constexpr Launcher kLaunchers[] = {
    {"flux run", "FLUX_JOB_SIZE", "FLUX_TASK_RANK", "flux run -o pmi=pmix -n {0} {1} ...", true},
    {"PALS", "PALS_SIZE", "PALS_RANKID", "mpiexec --pmi=pmix -n {0} {1} ..., or with mpirun of the program's MPI",
     true},
    {"PALS", "PALS_LOCAL_SIZE", "PALS_RANKID", "mpiexec --pmi=pmix -n {0} {1} ..., or with mpirun of the program's MPI",
     true},
    {"aprun", "ALPS_APP_SIZE", "ALPS_APP_PE", "mpirun -np {0} {1} ..., with mpirun of the program's MPI", true},
    {"jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", "mpirun -np {0} {1} ..., with mpirun of the program's MPI",
     true},
    {"the mpirun of MVAPICH", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK",
     "mpirun -np {0} {1} ..., with mpirun of the program's MPI", true},
    {"horovodrun", "HOROVOD_SIZE", "HOROVOD_RANK", "mpirun -np {0} {1} ...", false},
    {"torchrun, or a launcher like it,", "WORLD_SIZE", "LOCAL_RANK", "mpirun -np {0} {1} ...", false},
    {"a launcher of PyTorch", "WORLD_SIZE", "RANK", "mpirun -np {0} {1} ...", false},
    {"a launcher with PMIx", "", "PMIX_RANK", "mpirun -np {0} {1} ..., with mpirun of the program's MPI", true},
};

std::optional<int> number_in(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text < '0' || *text > '9') return std::nullopt;
  return std::atoi(text);
}

bool is_given(const char* variable) { return std::getenv(variable) != nullptr; }

/// The text about `processes` that are not connected. Nothing of them: their number is not known.
std::string not_connected(const std::string& variable, int value, const std::string& launcher,
                          std::optional<int> processes, const std::string& command, const std::string& program) {
  const std::string count = processes ? std::to_string(*processes) : "N";
  return fmt::format(
      "{}={}, but {} knows one rank: {} started {} that are not connected. Each would train alone and overwrite the "
      "files of the others. Start one job with: {} (if the runs are meant to be independent, unset {})",
      variable, value, mpi_version(), launcher, processes ? count + " processes" : "several processes",
      fmt::format(fmt::runtime(command), count, program), variable);
}

/// The mpirun of another MPI.
std::string other_mpi(const char* variable) {
  return fmt::format("{}={}, but {} knows one rank: mpirun belongs to another MPI. Use the mpirun of the program's MPI",
                     variable, number_in(variable).value_or(0), mpi_version());
}

/// Slurm's variables stand in batch scripts and in shells of salloc and srun --pty, too.
void find_slurm(Launch& launch, const std::string& program, bool at_terminal) {
  const int in_step = number_in("SLURM_STEP_NUM_TASKS").value_or(0);
  const int in_job = number_in("SLURM_NTASKS").value_or(0);
  const int rank = number_in("SLURM_PROCID").value_or(0);
  const bool several = in_step > 1 || (in_step == 0 && rank > 0);
  const bool is_task = number_in("SLURM_TASK_PID") == static_cast<int>(getpid());
  const bool in_shell = !is_task && (is_given("SLURM_PTY_PORT") || at_terminal);
  launch.by_launcher |= several && !in_shell;
  if (!several && in_job <= 1) return;
  const char* variable = in_step > 1 ? "SLURM_STEP_NUM_TASKS" : several ? "SLURM_PROCID" : "SLURM_NTASKS";
  if (several && !in_shell) {
    const bool open_mpi = mpi_version().rfind("Open MPI", 0) == 0;
    const std::string command =
        fmt::format("srun --mpi={} -n {{0}} {{1}} ..., or mpirun in the batch script", open_mpi ? "pmix" : "pmi2");
    const std::optional<int> tasks = in_step > 1  ? std::optional(in_step)
                                     : in_job > 1 ? std::optional(in_job)
                                                  : std::nullopt;
    launch.mistake = not_connected(variable, number_in(variable).value_or(0), "srun", tasks, command, program);
  } else {
    launch.warning = fmt::format(
        "{}={}, and this run has one rank. To start one rank per task, use mpirun {} ... or srun --mpi=pmix {} ...",
        variable, number_in(variable).value_or(0), program, program);
  }
}

void find_others(Launch& launch, const std::string& program, bool at_terminal) {
  for (const Launcher& launcher : kLaunchers) {
    const std::optional<int> size = number_in(launcher.size);
    const std::optional<int> rank = number_in(launcher.rank);
    if (!rank) continue;
    const bool several = size.value_or(0) > 1 || (!size && *rank > 0 && launcher.shells);
    const bool in_shell = launcher.shells && at_terminal;
    launch.by_launcher |= !in_shell;
    if (!several || !launch.mistake.empty()) continue;
    const bool by_size = size.value_or(0) > 1;
    const std::string text = not_connected(by_size ? launcher.size : launcher.rank, by_size ? *size : *rank,
                                           launcher.name, size, launcher.command, program);
    (in_shell ? launch.warning : launch.mistake) = text;
  }
  const std::optional<int> world = number_in("WORLD_SIZE");
  if (world.value_or(0) > 1 && !is_given("RANK") && !is_given("LOCAL_RANK")) {
    launch.warning = fmt::format(
        "WORLD_SIZE={0}, which MPI does not read, and this run has one rank. To start {0} ranks, use mpirun -np {0} "
        "{1} ...",
        *world, program);
  }
}

}  // namespace

Launch find_launch(const std::string& program, bool at_terminal) {
  Launch launch;
  const std::optional<int> open_mpi = number_in("OMPI_COMM_WORLD_SIZE");
  const std::optional<int> pmi = number_in("PMI_SIZE");
  launch.by_launcher = open_mpi || pmi || is_given("PMI_RANK");
  if (open_mpi == 1 || (!open_mpi && pmi == 1)) return launch;  // mpirun started one rank, wherever it runs
  if (open_mpi) {
    launch.mistake = other_mpi("OMPI_COMM_WORLD_SIZE");
    return launch;
  }
  find_slurm(launch, program, at_terminal);
  if (launch.mistake.empty()) find_others(launch, program, at_terminal);
  if (launch.mistake.empty() && pmi) launch.mistake = other_mpi("PMI_SIZE");
  if (!launch.mistake.empty()) launch.warning.clear();
  return launch;
}

Launch find_launch(const std::string& program) { return find_launch(program, isatty(STDIN_FILENO) == 1); }

}  // namespace ddptrain
