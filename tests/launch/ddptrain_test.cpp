#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/launch/metrics.h"
#include "tests/launch/process.h"

namespace ddptrain {
namespace {

const std::string kQuick = "--device cpu --data synthetic:600 --batch 16 ";

std::string temporary(const std::string& name) { return testing::TempDir() + "ddptrain_" + name; }

std::string content(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct BadInput {
  const char* name;
  std::string arguments;
  std::string message;
};

class BadInputTo : public testing::TestWithParam<BadInput> {};

TEST_P(BadInputTo, OneMessageExitCode2NothingOverwritten) {
  const std::string metrics = temporary("untouched.jsonl");
  std::ofstream(metrics) << "what was there\n";
  const Outcome outcome = train_on_cpu(2, fmt::format("--metrics {} {}", metrics, GetParam().arguments));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.count("ddptrain: "), 1) << outcome.output;
  EXPECT_TRUE(outcome.says(GetParam().message)) << outcome.output;
  EXPECT_FALSE(outcome.says("Epoch")) << outcome.output;
  EXPECT_EQ(content(metrics), "what was there\n");
}

INSTANTIATE_TEST_SUITE_P(
    Ddptrain, BadInputTo,
    testing::Values(
        BadInput{"flag", kQuick + "--foo 1", "--foo"},
        BadInput{"batch_too_large", kQuick + "--batch 301", "the largest batch that fits is 300"},
        BadInput{"folder", "--device cpu --data /nonexistent", "launch/fetch-data fashion-mnist"},
        BadInput{"synthetic", "--device cpu --data synthetic:x", "synthetic:COUNT"},
        BadInput{"config_file", kQuick + "--config /nonexistent.toml", "/nonexistent.toml"},
        BadInput{"metrics", kQuick + "--metrics /nonexistent/folder/file", "--metrics /nonexistent/folder/file: "},
        BadInput{"trace", kQuick + "--trace /nonexistent/folder/file", "--trace /nonexistent/folder/file: "},
        BadInput{"fail_at", kQuick + "--fail-at 2:1", "there is no rank 2 among 2"},
        BadInput{"comm", kQuick + "--comm nccl", "Use --comm mpi"},
        BadInput{"virtual_ranks_odd", kQuick + "--virtual-ranks 6", "Use a power of two"},
        BadInput{"virtual_ranks_few", kQuick + "--virtual-ranks 1", "1 on 2 replicas: "},
        BadInput{"virtual_ranks_many", kQuick + "--virtual-ranks 512", "the largest batch that fits"},
        BadInput{"precision", kQuick + "--precision bf16", "fp32"}),
    [](const auto& info) { return info.param.name; });

TEST(Ddptrain, ARunThatFailsLeavesNoEmptyFiles) {
  const std::string folder = testing::TempDir() + "ddptrain_empty";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const Outcome outcome = train_on_cpu(2, fmt::format("{} --fail-at 0:1 --trace {}/trace.json", kQuick, folder));
  EXPECT_EQ(outcome.count("step 1 fails"), 1) << outcome.output;
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST(Ddptrain, AWarmupThatIsLongerThanTheRunIsTold) {
  const Outcome outcome = train_on_cpu(2, fmt::format("{} --steps 3 --warmup 12", kQuick));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(outcome.count("--warmup 12: the run ends after 3 steps, at 25% of the learning rate"), 1) << outcome.output;
}

TEST(Ddptrain, ARankAloneNeedsNoDaemonOfMpi) {
  const Outcome outcome =
      run_command(fmt::format("OPAL_BINDIR=/nonexistent timeout 600 {} --version", DDPTRAIN_PROGRAM));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(outcome.output.rfind("ddptrain ", 0), 0u) << outcome.output;
}

TEST(Ddptrain, CudaWithoutAGpuSaysWhatToDo) {
  for (const std::string flag : {"--device cuda", "--share-gpu"}) {
    const Outcome outcome = train_on_cpu(2, flag + " --data synthetic:600", "CUDA_VISIBLE_DEVICES=");
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.count("ddptrain: " + flag), 1) << outcome.output;
    EXPECT_TRUE(outcome.says("--device cpu")) << outcome.output;
  }
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
  const Outcome outcome = train_on_cpu(2, kQuick + "--epochs 2 --metrics " + metrics, "NCCL_ALGO=Ring");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(outcome.count("\nImages/sec: "), 2) << outcome.output;
  for (const char* text :
       {"Epoch 1/2\nloss ", "Epoch 2/2\nloss ", "  accuracy ", "\nResult   ", "\nScaling  ", "\nHash     "}) {
    EXPECT_TRUE(outcome.says(text)) << text << "\n" << outcome.output;
  }
  const auto lines = json_lines(metrics);
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
}

TEST(Ddptrain, ARunThatFailsLeavesTheStepsBefore) {
  const std::string metrics = temporary("failed.jsonl");
  EXPECT_NE(train_on_cpu(1, kQuick + "--log-every 5 --fail-at 0:14 --metrics " + metrics).exit_code, 0);
  const auto lines = json_lines(metrics);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines.back().at("step"), 10);
}

TEST(Ddptrain, MfuRelatesToThePeakThatTheRunMeasures) {
  const std::string metrics = temporary("peak.jsonl");
  const Outcome outcome = train_on_cpu(2, kQuick + "--steps 5 --baseline off --peak-tflops gemm --metrics " + metrics);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const auto summary = summary_in(metrics);
  EXPECT_EQ(summary.at("peak_source"), "products of 768 x 768 x 768 in this run, fp32");
  EXPECT_GT(summary.at("peak_flops"), 1e9);
  EXPECT_GT(summary.at("mfu"), 0.0);
  EXPECT_GT(summary.at("startup_phases").at("peak"), 1.9);
  EXPECT_TRUE(outcome.says("TFLOP/s per rank")) << outcome.output;
}

}  // namespace
}  // namespace ddptrain
