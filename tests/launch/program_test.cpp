#include "launch/app/job/program.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <tuple>

#include "launch/app/job/early_start.h"
#include "launch/app/job/launchers.h"
#include "runtime/core/process/scoped_environment.h"
#include "runtime/device/device.h"
#include "tests/launch/process.h"

namespace ddptrain {
namespace {

Outcome run_errors(const std::string& what) {
  return run_command(fmt::format("timeout 600 {} -np 3 {} {}", DDP_MPIRUN, DDP_ERRORS_PROGRAM, what));
}

TEST(Program, WithoutAnErrorItEndsWith0) {
  const Outcome outcome = run_errors("nothing");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.count("done"), 1) << outcome.output;
}

TEST(Program, AgreedErrorsAreOneMessage) {
  const Outcome usage = run_errors("agreed_usage");
  EXPECT_EQ(usage.exit_code, 2);
  EXPECT_EQ(usage.count("errors_program: the last rank has no file"), 1) << usage.output;
  EXPECT_FALSE(usage.says("error on rank")) << usage.output;
  const Outcome error = run_errors("agreed_error");
  EXPECT_EQ(error.exit_code, 1);
  EXPECT_EQ(error.count("errors_program: the last rank is out of range"), 1) << error.output;
  EXPECT_FALSE(error.says("error on rank")) << error.output;
}

TEST(Program, AnErrorOfOneRankEndsTheJobWithItsMessage) {
  for (const char* what : {"usage", "error", "other"}) {
    const Outcome outcome = run_errors(what);
    EXPECT_EQ(outcome.exit_code, 1) << what;
    EXPECT_EQ(outcome.count("errors_program: error on rank 2 ("), 1) << outcome.output;
    EXPECT_TRUE(outcome.says("): the last rank ")) << outcome.output;
  }
}

TEST(Program, ARankThatIsKilledIsNamedAlthoughOthersFailBecauseOfIt) {
  const Outcome outcome = run_errors("killed");
  EXPECT_TRUE(outcome.says("rank 2 with PID")) << outcome.output;
}

TEST(Program, OutputThatIsNotWrittenIsAnError) {
  const std::string saved = temporary("saved_without_output");
  const std::string train = "--device cpu --data synthetic:600 --batch 16 --baseline off --steps 2 ";
  for (const std::string& flags : {std::string("--version"), std::string("--help"), train + "--print-config",
                                   train + "--describe", train + "--save " + saved}) {
    const Outcome outcome = run_command(fmt::format("timeout 600 {} {} > /dev/full", DDPTRAIN_PROGRAM, flags));
    EXPECT_EQ(outcome.exit_code, 1) << flags << outcome.output;
    EXPECT_EQ(outcome.count("ddptrain: writing to standard output failed"), 1) << flags << outcome.output;
  }
  EXPECT_TRUE(std::filesystem::exists(saved)) << "a run that has trained keeps its files";
}

TEST(Program, TheMpirunOfAnotherMpiIsAMistake) {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const auto alone = [&](int ranks) {
      return run_command(fmt::format("{}={} timeout 600 {} nothing", variable, ranks, DDP_ERRORS_PROGRAM));
    };
    EXPECT_EQ(alone(1).exit_code, 0) << alone(1).output;
    const Outcome outcome = alone(2);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_TRUE(outcome.says("mpirun belongs to another MPI")) << outcome.output;
  }
}

/// What is wrong with one rank in this environment ("NAME=VALUE NAME=VALUE").
Launch launched_in(const std::string& variables, bool at_terminal = false) {
  ScopedEnvironment environment;
  for (const char* name :
       {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "SLURM_NTASKS",
        "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_TASK_PID", "SLURM_PTY_PORT", "FLUX_JOB_SIZE", "FLUX_TASK_RANK",
        "PALS_SIZE", "PALS_LOCAL_SIZE", "PALS_RANKID", "WORLD_SIZE", "RANK", "LOCAL_RANK"}) {
    environment.set(name, std::nullopt);
  }
  for (const std::string& word : words_of(variables)) {
    const std::size_t equals = word.find('=');
    environment.set(word.substr(0, equals).c_str(), word.substr(equals + 1));
  }
  return find_launch("ddptrain", at_terminal);
}

TEST(Launch, ProcessesThatMpiDoesNotConnectAreAMistakeThatNamesTheLauncher) {
  for (const auto& [variables, variable, command] :
       {std::tuple{"SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2", "srun --mpi=pm"},
        {"SLURM_NTASKS=4 SLURM_PROCID=1", "SLURM_PROCID=1", "srun --mpi=pm"},
        {"PMI_SIZE=4 PMI_RANK=0 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=4", "-n 4 ddptrain"},
        {"RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2", "WORLD_SIZE=2", "mpirun -np 2 ddptrain"},
        {"RANK=0 WORLD_SIZE=8", "WORLD_SIZE=8", "mpirun -np 8 ddptrain"},
        {"FLUX_JOB_SIZE=4 FLUX_TASK_RANK=0", "FLUX_JOB_SIZE=4", "flux run -o pmi=pmix -n 4 ddptrain"},
        {"PALS_RANKID=3", "PALS_RANKID=3", "mpiexec --pmi=pmix"},
        {"PALS_RANKID=0 PALS_LOCAL_SIZE=4", "PALS_LOCAL_SIZE=4", "mpiexec --pmi=pmix -n 4"},
        {"JSM_NAMESPACE_SIZE=6 JSM_NAMESPACE_RANK=0", "JSM_NAMESPACE_SIZE=6", "mpirun -np 6"},
        {"HOROVOD_SIZE=2 HOROVOD_RANK=0", "HOROVOD_SIZE=2", "mpirun -np 2"},
        {"MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_RANK=1", "MV2_COMM_WORLD_SIZE=2", "mpirun -np 2"},
        {"PMIX_RANK=1", "PMIX_RANK=1", "mpirun -np N"},
        {"PMI_SIZE=2", "PMI_SIZE=2", "mpirun belongs to another MPI"},
        {"OMPI_COMM_WORLD_SIZE=2 SLURM_STEP_NUM_TASKS=4", "OMPI_COMM_WORLD_SIZE=2", "mpirun belongs to another MPI"}}) {
    const Launch launch = launched_in(variables);
    EXPECT_CONTAINS(launch.mistake, variable) << ": " << variables;
    EXPECT_CONTAINS(launch.mistake, command) << ": " << variables;
    EXPECT_TRUE(launch.by_launcher) << variables;
    EXPECT_EQ(launch.warning, "") << variables;
  }
}

TEST(Launch, VariablesOfAShellOrABatchScriptAreAWarning) {
  for (const auto& [variables, at_terminal] : {std::pair{"SLURM_NTASKS=8 SLURM_PROCID=0", false},
                                               {"SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0", false},
                                               {"SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 SLURM_PTY_PORT=4711", false},
                                               {"SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 SLURM_TASK_PID=1", true},
                                               {"WORLD_SIZE=8", false},
                                               {"FLUX_JOB_SIZE=4 FLUX_TASK_RANK=0", true}}) {
    const Launch launch = launched_in(variables, at_terminal);
    EXPECT_EQ(launch.mistake, "") << variables;
    EXPECT_NE(launch.warning, "") << variables;
  }
  const std::string own =
      fmt::format("SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 SLURM_PTY_PORT=1 SLURM_TASK_PID={}", getpid());
  EXPECT_NE(launched_in(own).mistake, "") << "srun --pty ddptrain";
}

TEST(Launch, OneRankIsAsWanted) {
  for (const char* variables :
       {"", "SLURM_NTASKS=1 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0", "WORLD_SIZE=1 RANK=0 LOCAL_RANK=0",
        "OMPI_COMM_WORLD_SIZE=1 SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=2", "PMI_SIZE=1 PMI_RANK=0 SLURM_NTASKS=2",
        "FLUX_JOB_SIZE=1 FLUX_TASK_RANK=0", "PALS_RANKID=0", "PMIX_RANK=0"}) {
    const Launch launch = launched_in(variables);
    EXPECT_EQ(launch.mistake + launch.warning, "") << variables;
  }
  EXPECT_FALSE(launched_in("").by_launcher);
  EXPECT_TRUE(launched_in("OMPI_COMM_WORLD_SIZE=1").by_launcher);
}

// Each part is `mpirun -np COUNT COMMAND`.
Outcome run_parts(const std::vector<std::string>& parts) {
  return run_command(fmt::format("timeout 600 {} -np {}", DDP_MPIRUN, fmt::join(parts, " : -np ")));
}

std::string part(int ranks, const std::string& arguments, const std::string& environment = "") {
  return fmt::format("{} env {} {} --data synthetic:600 --batch 16 --baseline off --steps 2 {}", ranks, environment,
                     DDPTRAIN_PROGRAM, arguments);
}

void expect_difference(const Outcome& outcome, const std::string& message) {
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.count("ddptrain: "), 1) << outcome.output;
  EXPECT_TRUE(outcome.says("ddptrain: " + message)) << outcome.output;
}

TEST(Program, RanksWithOtherOptionsAreTold) {
  expect_difference(run_parts({part(1, "--device cpu"), part(2, "--device cpu --steps 4")}),
                    "the ranks differ in --steps: 2 on rank 0; 4 on ranks 1-2.");
  const std::string config = testing::TempDir() + "other_ranks.toml";
  std::ofstream(config) << "batch = 8\nlr = 0.25\n";
  expect_difference(run_parts({part(2, "--device cpu"), part(1, "--device cpu --config " + config)}),
                    "the ranks differ in --lr: 0.001 on ranks 0-1; 0.25 on rank 2.");
  expect_difference(run_parts({part(1, "--device cpu"), part(1, "--help")}),
                    "the ranks differ in the task: training on rank 0; --help on rank 1.");
}

TEST(Program, AnotherWayToSayTheSameIsNoDifference) {
  const std::string config = testing::TempDir() + "same_ranks.toml";
  std::ofstream(config) << "lr = 0.25\ndevice = \"cpu\"\n";
  const Outcome outcome = run_parts({part(1, "--device cpu --lr 2.5e-1"), part(1, "--config " + config)});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

TEST(Program, RanksThatReadOtherDataAreTold) {
  std::vector<std::string> parts;
  for (const int length : {3000, 3001}) {
    const std::string folder = fmt::format("{}data{}", testing::TempDir(), length);
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/text.txt") << std::string(static_cast<std::size_t>(length), 'x');
    const std::string model = "--model gpt --layers 1 --width 16 --heads 2 --ff 16 --seq 8 --batch 1";
    parts.push_back(
        fmt::format("1 env -C {} {} --device cpu {} --data text.txt --steps 2", folder, DDPTRAIN_PROGRAM, model));
  }
  expect_difference(run_parts(parts), "the data is not the same on all hosts: 3000 tokens (XXH3 ");
}

TEST(Program, RanksThatReadOtherModelsAreTold) {
  const std::string options = "--device cpu --model gpt --heads 2 --seq 8 --batch 1 --data synthetic:2000:50";
  std::vector<std::string> parts;
  for (const int width : {16, 32}) {
    const std::string folder = fmt::format("{}width{}", testing::TempDir(), width);
    std::filesystem::create_directories(folder);
    const Outcome saved = train_on_cpu(
        1, fmt::format("{} --layers 1 --width {} --ff 16 --steps 1 --save {}/model", options, width, folder));
    ASSERT_EQ(saved.exit_code, 0) << saved.output;
    parts.push_back(fmt::format("1 env -C {} {} {} --init model --steps 1", folder, DDPTRAIN_PROGRAM, options));
  }
  expect_difference(run_parts(parts), "the ranks differ in the model's width: 16 on rank 0; 32 on rank 1.");
}

TEST(Program, TheLaunchersLocalRankMustBeThatOfMpi) {
  if (!built_with_cuda()) GTEST_SKIP() << "looks for GPUs in builds with CUDA only";
  const Outcome outcome = run_parts(
      {part(1, "", "CUDA_VISIBLE_DEVICES=0,1 OMPI_COMM_WORLD_LOCAL_RANK=1"), part(1, "", "CUDA_VISIBLE_DEVICES=0,1")});
  expect_difference(outcome, "rank 0 on ");
  EXPECT_TRUE(outcome.says("the launcher counts it as rank 1 of its host, MPI as 0")) << outcome.output;
}

TEST(EarlyStart, LocalRankIsThatOfTheLauncher) {
  ScopedEnvironment environment;
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_LOCAL_RANK", "PMIX_RANK",
                           "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PMI_RANK", "PALS_LOCAL_RANKID", "PALS_RANKID",
                           "FLUX_TASK_LOCAL_ID", "FLUX_TASK_RANK", "SLURM_LOCALID", "SLURM_PROCID"}) {
    environment.set(name, std::nullopt);
  }
  EXPECT_EQ(launched_local_rank(), 0);
  environment.set("PMI_RANK", "5");
  EXPECT_EQ(launched_local_rank(), std::nullopt);
  environment.set("SLURM_LOCALID", "2");
  EXPECT_EQ(launched_local_rank(), 2);
  environment.set("MPI_LOCALRANKID", "1");
  EXPECT_EQ(launched_local_rank(), 1);
  environment.set("OMPI_COMM_WORLD_LOCAL_RANK", "3");
  EXPECT_EQ(launched_local_rank(), 3);
}

// The library that is loaded before the program says where the program itself changes the environment while it has more
// than one thread.
TEST(EarlyStart, TheEnvironmentChangesOnlyBeforeThreadsStart) {
  if (!built_with_cuda()) GTEST_SKIP() << "changes the environment in builds with CUDA only";
  const std::string guard = fmt::format("LD_PRELOAD={} CUDA_VISIBLE_DEVICES={}", DDP_ENVIRONMENT_GUARD,
                                        cuda_device_count() > 1 ? "0,1" : "0,0");
  for (const std::string launcher : {"", "-u OMPI_COMM_WORLD_LOCAL_RANK "}) {
    const Outcome outcome = run_parts({part(2, "", launcher + guard)});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_FALSE(outcome.says("environment_guard:")) << launcher << outcome.output;
  }
}

}  // namespace
}  // namespace ddptrain
