#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/launch/process.h"

namespace ddptrain {
namespace {

const std::string kQuick = "--device cpu --data synthetic:600 --batch 16 ";

/// Several ranks print one message. What does not depend on their number is tried on one, which starts faster.
TEST(Ddptrain, BadInputIsOneMessageAndOverwritesNothing) {
  const std::string metrics = temporary("untouched.jsonl");
  const std::string before = "{\"event\":\"start\",\"version\":\"0.1.0\"}\n";
  std::ofstream(metrics) << before;
  struct Mistake {
    int ranks;
    std::string arguments;
    const char* message;
  };
  for (const auto& [ranks, arguments, message] :
       {Mistake{2, kQuick + "--foo 1", "--foo"},
        {2, kQuick + "--batch 301", "the largest batch that fits is 300"},
        {2, "--device cpu --data /nonexistent", "launch/fetch-data fashion-mnist"},
        {1, "--device cpu --data synthetic:x", "synthetic:COUNT"},
        {2, "--device cpu --data synthetic:4000000000", "4000000000 synthetic images would take 3.45 TB of each rank"},
        {2, kQuick + "--flight /dev/null", "--flight /dev/null: the folder cannot be made"},
        {2, "--device cpu --generate --prompt a --resume /nonexistent",
         "--resume /nonexistent: there is no checkpoint"},
        {1, "--device cuda --data synthetic:600", "Use --device cpu."},
        {1, "--share-gpu --data synthetic:600", "ddptrain: --share-gpu: "},
        {1, kQuick + "--metrics /nonexistent/folder/file", "--metrics /nonexistent/folder/file: "},
        {2, kQuick + "--trace /nonexistent/folder/file", "--trace /nonexistent/folder/file: "},
        {2, kQuick + "--fail-at 2:1", "--fail-at: there is no rank 2 among 2"},
        {1, kQuick + "--hang-at 1:1", "--hang-at: there is no rank 1 among 1"},
        {2, kQuick + "--comm nccl", "Use --comm mpi"},
        {1, kQuick + "--virtual-ranks 6", "Use a power of two"},
        {2, kQuick + "--virtual-ranks 1", "1 on 2 replicas: "},
        {1, kQuick + "--virtual-ranks 512", "the largest batch that fits"},
        {1, kQuick + "--precision bf16", "--precision bf16: the CPU computes in fp32"},
        {1, kQuick + "--nproc_per_node 2", "unknown flag --nproc-per-node: mpirun sets the number of ranks"},
        {1, kQuick + "--model gpt --precision fp8", "--precision fp8: the CPU computes in fp32"},
        {1, "--device cpu --data /nonexistent/\x1b[2Jfolder", "--data: /nonexistent/?[2Jfolder"},
        {1, "--device cpu --data '/nonexistent/a\nfolder'", "--data: /nonexistent/a?folder: "},
        {1, kQuick + "--trace '/nonexistent/a\nfile'", "--trace /nonexistent/a?file: "}}) {
    const Outcome outcome =
        train_on_cpu(ranks, fmt::format("--metrics {} {}", metrics, arguments), "CUDA_VISIBLE_DEVICES=");
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_EQ(outcome.count("ddptrain: "), 1) << outcome.output;
    EXPECT_TRUE(outcome.says(message)) << outcome.output;
    EXPECT_FALSE(outcome.says("Epoch")) << outcome.output;
    EXPECT_EQ(content_of(metrics), before) << arguments;
  }
}

TEST(Ddptrain, TheCommandsOfOtherProgramsTrain) {
  const Outcome outcome = train_on_cpu(
      2, "--model mlp --hidden 8 --data synthetic:600 --batch_size=16 --num-epochs 1 --no-cuda --baseline off",
      "NCCL_DEBUG=INFO CUDA_VISIBLE_DEVICES=0,3");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_TRUE(outcome.says("Epoch 1/1")) << outcome.output;
}

TEST(Ddptrain, FilesOfOthersAreNotOverwritten) {
  const std::string model = temporary("a_model"), run = temporary("own_run.jsonl"), foreign = temporary("notes.txt");
  const std::string trace = temporary("own_trace.json");
  const std::string quick = "--device cpu --model mlp --hidden 8 --batch 16 --steps 2 --baseline off ";
  const auto train = [&](const std::string& arguments) {
    return run_command(fmt::format("timeout 600 {} {}{}", DDPTRAIN_PROGRAM, quick, arguments));
  };
  const std::string own = fmt::format("--data synthetic:600 --save {} --metrics {} --trace {}", model, run, trace);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(train(own).exit_code, 0) << "twice the same command: " << train(own).output;
  std::ofstream(foreign) << "words";
  for (const std::string& arguments :
       {"--data synthetic:600 --metrics " + foreign, "--data synthetic:600 --trace " + run,
        fmt::format("--data synthetic:600 --init {0} --metrics {0}/model.safetensors", model),
        fmt::format("--data {0} --metrics {0}", foreign)}) {
    const Outcome outcome = train(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments << outcome.output;
    EXPECT_TRUE(outcome.says("Give another name")) << outcome.output;
  }
  EXPECT_EQ(content_of(foreign), "words");
  EXPECT_EQ(train("--data synthetic:600 --force --metrics " + foreign).exit_code, 0);
  EXPECT_EQ(train("--data synthetic:600 --metrics /dev/null --trace /dev/null").exit_code, 0);
}

TEST(Ddptrain, DescriptionsNeedNoMpi) {
  const std::string no_mpi = "OMPI_MCA_pml=none_such timeout 600 ";  // Open MPI does not start with it
  for (const char* flags : {"--describe", "--dry-run", "--describe --ranks 1000", "--print-config", "--help"}) {
    const Outcome outcome = run_command(fmt::format("{}{} --device cpu --data synthetic:4000 --model mlp --batch 2 {}",
                                                    no_mpi, DDPTRAIN_PROGRAM, flags));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  }
}

TEST(Ddptrain, OneRankSaysWhatItLeavesUnused) {
  const Outcome outcome = run_command(
      fmt::format("timeout 600 {} --model mlp --hidden 8 --steps 2 {} 2>&1 >/dev/null", DDPTRAIN_PROGRAM, kQuick));
  EXPECT_TRUE(outcome.says("--save DIR keeps them")) << outcome.output;
}

TEST(Ddptrain, AWarmupThatIsLongerThanTheRunIsTold) {
  const Outcome outcome = train_on_cpu(2, fmt::format("{} --steps 3 --warmup 12 --baseline off", kQuick));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(outcome.count("--warmup 12: the run ends after 3 steps, at 25% of the learning rate"), 1) << outcome.output;
}

TEST(Ddptrain, ARankAloneNeedsNoDaemonOfMpi) {
  const Outcome outcome =
      run_command(fmt::format("OPAL_BINDIR=/nonexistent timeout 600 {} --version", DDPTRAIN_PROGRAM));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(outcome.output.rfind("ddptrain ", 0), 0u) << outcome.output;
}

TEST(Ddptrain, HelpVersionAndConfigurationComeOnce) {
  const Outcome help = train_on_cpu(2, "--help");
  EXPECT_EQ(help.exit_code, 0);
  for (const char* flag : {"\n  --grad-accum", "\n  --pp", "\n  --tp"}) EXPECT_EQ(help.count(flag), 1) << help.output;
  const Outcome version = train_on_cpu(2, "--version");
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_EQ(version.count("ddptrain "), 1) << version.output;
  for (const char* part : {"CUDA", "cuDNN", "NCCL", "MPI"}) EXPECT_TRUE(version.says(part)) << part;
  EXPECT_EQ(train_on_cpu(2, "--print-config").count("grad-accum = 1"), 1);
}

TEST(Ddptrain, OutputAndMetricsHoldWhatIsPromised) {
  const std::string metrics = temporary("metrics.jsonl");
  const Outcome outcome =
      train_on_cpu(2, kQuick + "--epochs 2 --calibration-seconds 1 --metrics " + metrics, "NCCL_ALGO=Ring");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(outcome.count("\nImages/sec: "), 2) << outcome.output;
  for (const char* text :
       {"Epoch 1/2\nloss ", "Epoch 2/2\nloss ", "  accuracy ", "\nResult   ", "\nScaling  ", "\nHash     "}) {
    EXPECT_TRUE(outcome.says(text)) << text << "\n" << outcome.output;
  }
  auto lines = json_lines(metrics);
  EXPECT_GT(std::erase_if(lines, [](const auto& line) { return line.at("event") == "step"; }), 0u);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines.front().at("event"), "start");
  EXPECT_EQ(lines[2].at("event"), "epoch");
  const auto& summary = lines.back();
  EXPECT_EQ(summary.at("event"), "summary");
  EXPECT_EQ(summary.at("world_size"), 2);
  EXPECT_EQ(summary.at("parameters"), 1199882);
  EXPECT_EQ(summary.at("steps"), 2 * (600 / 32));
  EXPECT_EQ(summary.at("environment").at("NCCL_ALGO"), "Ring");
  EXPECT_TRUE(summary.at("nccl").is_null());
  EXPECT_GT(summary.at("baseline_per_second"), 0.0);
  EXPECT_GT(summary.at("startup_seconds"), 0.0);
  EXPECT_EQ(summary.at("accuracy_per_epoch").size(), 2u);
}

TEST(Ddptrain, LoggedStepsAddUpToTheirEpochs) {
  const std::string metrics = temporary("steps.jsonl");
  const Outcome outcome =
      train_on_cpu(2, kQuick + "--epochs 2 --baseline off --log-every 1 --schedule linear --metrics " + metrics);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  double loss = 0.0;
  double last_loss = 0.0;
  std::int64_t step = 0;
  double time = 0.0;
  for (const auto& line : json_lines(metrics)) {
    EXPECT_GE(line.at("time"), time);
    time = line.at("time");
    if (line.at("event") == "step") {
      EXPECT_EQ(line.at("step"), ++step);
      EXPECT_EQ(line.at("samples"), 32 * step);
      EXPECT_NEAR(line.at("learning_rate"), 1e-3 * (36 - step + 1) / 36.0, 1e-8);
      EXPECT_GT(line.at("gradient_norm"), 0.0);
      EXPECT_GT(line.at("images_per_second"), 0.0);
      EXPECT_GE(line.at("exposed_comm_seconds"), 0.0);
      EXPECT_LT(line.at("exposed_comm_seconds"), line.at("step_seconds"));
      last_loss = line.at("loss");
      loss += last_loss;
    } else if (line.at("event") == "epoch") {
      EXPECT_NEAR(line.at("loss"), loss / 18, 1e-9);
      EXPECT_NEAR(line.at("last_loss"), last_loss, 1e-9);
      loss = 0.0;
    }
  }
  EXPECT_EQ(step, 36);
  EXPECT_EQ(summary_in(metrics).at("configuration").at("log-every"), "1");
  EXPECT_TRUE(summary_in(metrics).at("scaling_efficiency").is_null()) << "--baseline off";
  ASSERT_EQ(train_on_cpu(1, kQuick + "--epochs 1 --metrics " + metrics).exit_code, 0);
  EXPECT_EQ(summary_in(metrics).at("scaling_efficiency"), 1.0) << "one rank is the baseline";
  EXPECT_EQ(summary_in(metrics).at("baseline_per_second"), summary_in(metrics).at("images_per_second"));
}

TEST(Ddptrain, ARunThatFailsLeavesTheStepsBeforeAndNoEmptyFiles) {
  const std::string metrics = temporary("failed.jsonl"), trace = temporary("failed_trace.json");
  const Outcome outcome =
      train_on_cpu(2, kQuick + "--log-every 5 --fail-at 0:14 --metrics " + metrics + " --trace " + trace);
  EXPECT_EQ(outcome.count("step 14 fails"), 1) << outcome.output;
  const auto lines = json_lines(metrics);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines.back().at("step"), 10);
  EXPECT_FALSE(std::filesystem::exists(trace));
}

/// The summary of a rank with `threads` on one core, which a loop uses at the same time.
nlohmann::json summary_on_a_busy_core(int threads, int steps) {
  const std::string metrics = temporary("busy.jsonl");
  const std::string loop = "taskset -c $core timeout 600 sh -c 'while :; do :; done'";
  const Outcome outcome = run_command(
      fmt::format("core=$(taskset -cp $$ | sed 's/.*: *\\([0-9]*\\).*/\\1/'); {} & taskset -c $core timeout 600 {} {}"
                  "--threads {} --steps {} --baseline off --force --metrics {}; code=$?; kill $!; exit $code",
                  loop, DDPTRAIN_PROGRAM, kQuick, threads, steps, metrics));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  return summary_in(metrics);
}

/// Whether the kernel says how long threads wait for a core.
bool counts_core_waits() {
  std::ifstream file("/proc/self/schedstat");
  std::uint64_t nanoseconds = 0;
  return file >> nanoseconds && nanoseconds > 0;
}

TEST(Ddptrain, TheSummaryTellsOtherProgramsFromTooManyThreads) {
  const auto crowded = summary_on_a_busy_core(2, 2);
  EXPECT_EQ(crowded.at("disturbed"), "2 threads share 1 core");
  EXPECT_EQ(crowded.at("disturbed_by_others"), false);
  const auto disturbed = summary_on_a_busy_core(1, 60);
  if (!counts_core_waits()) GTEST_SKIP() << "this machine hides how long threads wait for a core";
  EXPECT_EQ(disturbed.at("disturbed_by_others"), true) << disturbed.at("disturbed");
}

TEST(Ddptrain, MfuRelatesToThePeakThatIsGiven) {
  const std::string metrics = temporary("peak.jsonl");
  const Outcome outcome = train_on_cpu(2, kQuick + "--steps 5 --baseline off --peak-tflops 0.5 --metrics " + metrics);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const auto summary = summary_in(metrics);
  EXPECT_EQ(summary.at("peak_source"), "--peak-tflops");
  EXPECT_EQ(summary.at("peak_flops"), 5e11);
  EXPECT_GT(summary.at("mfu"), 0.0);
  EXPECT_TRUE(outcome.says("TFLOP/s per rank")) << outcome.output;
}

}  // namespace
}  // namespace ddptrain
