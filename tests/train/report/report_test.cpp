#include "runtime/train/report/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "runtime/core/error.h"
#include "tests/support/says.h"

namespace ddptrain {
namespace {

RunInfo eight_gpus() {
  RunInfo info;
  info.description.model = "cnn";
  info.description.device = "cuda";
  info.description.unit = "images";
  info.topology = "NV18";
  info.zero = 1;
  info.description.gradient_type = "fp32";
  info.description.buckets = {{64, {"a", "b"}, 0.5}};
  info.description.memory = {{"weights", 128}};
  info.gradient_path = {"plain", "NCCL plain", "NCCL_PROTO is set"};
  info.description.mesh.replicas = 8;
  info.local_world_size = 8;
  info.epochs = 8;
  info.description.flop_per_sample = 71.5e6;
  info.peak = {989e12, "H200 SXM, bf16, data sheet"};
  return info;
}

RunResult measured() {
  RunResult result;
  result.epochs.push_back({4, 100, 0.2711, 0.9, 0.3, 0.9012, 4012345.67});
  result.rate = {4000000.0, 3900000.0, 4100000.0, 7, 8.4};
  result.parameter_hash = "0123456789abcdef";
  Calibration c;
  c.samples_per_second = 4000000.0;
  c.baseline_per_second = 520000.0;
  c.scaling_efficiency = {0.9615, 0.0042};
  c.step_seconds = 1e-4;
  c.alone_seconds = 7.5e-5;
  c.compute_step_seconds = {7e-5, 8.2e-5, 9e-5, 7.8e-5};
  c.slowest_rank = 2;
  c.compute_step_mean_seconds = 8e-5;
  c.rank_0 = {0.969, 0.002};
  c.cpu_share = {0.98, 0.61, 0.99, 0.95};
  c.communication_seconds = 4e-5;
  c.together = {5e-6, 1e-7};
  c.stragglers = {1e-5, 2e-7};
  c.exposed = {1e-5, 3e-7};
  c.slowed_down = {1.2e-5, 1e-7};
  c.waiting = {-2e-6, 4e-7};
  c.exposed_fraction = {0.25, 0.0075};
  c.rounds.resize(5);
  c.rounds[3].clock_fell = true;
  c.rounds[3].groups = {{2e-4, 1e-4, {}}, {3e-4, 0.0, {}}};
  c.limit_seconds = 6.47;
  c.disturbed.why = "other programs took 52% of the cores";
  c.disturbed.by_others = true;
  c.cores_taken = 0.52;
  c.core_wait = 0.31;
  result.calibration = c;
  result.nccl = NcclUsage{"2.28.9", "Ring", "LL", "P2P/CUMEM", 16};
  return result;
}

struct Written {
  std::string printed;
  nlohmann::json line;  ///< Of the metrics file.
};

Written summary_of(const RunInfo& info, const RunResult& result) {
  const std::string path = testing::TempDir() + "ddptrain_report_summary.jsonl";
  MetricsFile file(path);
  Report report(info, &file);
  testing::internal::CaptureStdout();
  report.summary(result);
  const std::string printed = testing::internal::GetCapturedStdout();
  std::ifstream in(path);
  return {printed, nlohmann::json::parse(in)};
}

std::string printed_epoch(const RunInfo& info, const EpochResult& epoch) {
  Report report(info);
  testing::internal::CaptureStdout();
  report.epoch(epoch);
  return testing::internal::GetCapturedStdout();
}

TEST(Report, PrintsAnEpochAsPeopleGrepForIt) {
  RunInfo info = eight_gpus();
  EpochResult epoch = measured().epochs.front();
  EXPECT_EQ(printed_epoch(info, epoch), "Epoch 4/8\nloss 0.2711  accuracy 0.9012\nImages/sec: 4012345.67\n");
  epoch.samples_per_second = std::nan("");  // not measured
  EXPECT_EQ(printed_epoch(info, epoch), "Epoch 4/8\nloss 0.2711  accuracy 0.9012\n");
  info.description.unit = "tokens";
  epoch.samples_per_second = 7.0;
  epoch.test_loss = 2.0;
  EXPECT_EQ(printed_epoch(info, epoch),
            "Epoch 4/8\nloss 0.2711  accuracy 0.9012  validation loss 2.0000  perplexity 7.39\nTokens/sec: 7.00\n");
}

TEST(Report, SummaryHoldsMfuAndWhatNcclUsed) {
  const auto [table, summary] = summary_of(eight_gpus(), measured());
  EXPECT_CONTAINS(table, "[warning] Rank 1 got a core 61% of the time: do not trust the scaling");
  EXPECT_CONTAINS(table, "\n\nResult   ");
  RunResult with_cores = measured();
  with_cores.calibration->cpu_share = {0.98, 0.91};
  EXPECT_FALSE(says(summary_of(eight_gpus(), with_cores).printed, "got a core"));
  EXPECT_NEAR(summary.at("mfu"), 71.5e6 * 4e6 / (8 * 989e12), 1e-9);
  const auto expected = nlohmann::json::parse(R"({
    "topology": "NV18", "zero": 1, "comm_dtype": "fp32", "gradient_path": "plain",
    "gradient_path_reason": "NCCL_PROTO is set", "images_per_second_min": 3900000.0, "calibration_rounds": 5,
    "step_seconds_without_communication": 9e-5, "step_seconds_without_communication_mean": 8e-5,
    "rank_0_step_ratio": 0.969, "rank_0_step_ratio_half_width": 0.002, "scaling_efficiency_half_width": 0.0042,
    "calibration_limit_seconds": 6.47, "cores_taken": 0.52, "core_wait": 0.31,
    "disturbed": "other programs took 52% of the cores", "disturbed_by_others": true})");
  for (const auto& [name, value] : expected.items()) EXPECT_EQ(summary.at(name), value) << name;
  const nlohmann::json& description = summary.at("description");
  EXPECT_EQ(description.at("buckets").at(0).at("complete_at"), 0.5);
  EXPECT_EQ(description.at("comm_bytes_per_step"), 64);
  EXPECT_EQ(description.at("memory").at("weights"), 128);
  EXPECT_FALSE(description.contains("layers"));
  EXPECT_EQ(summary.at("nccl").at("algorithm"), "Ring");
  EXPECT_EQ(summary.at("nccl").at("channels"), 16);
  EXPECT_EQ(summary.at("step_seconds_without_communication_per_rank").size(), 4u);
  EXPECT_EQ(summary.at("cpu_share_per_rank").at(1), 0.61);
  EXPECT_NEAR(summary.at("waiting_us"), -2.0, 1e-9);
  EXPECT_NEAR(summary.at("scaling_efficiency_low"), 0.9573, 1e-9);
  EXPECT_NEAR(summary.at("scaling_efficiency_high"), 0.9657, 1e-9);
  EXPECT_NEAR(summary.at("waiting_us_half_width"), 0.4, 1e-9);
  EXPECT_EQ(summary.at("calibration").at(3).at("clock_fell"), true);
  EXPECT_EQ(summary.at("calibration").at(3).at("exposed_seconds"), (std::vector{2e-4, 3e-4}));
  EXPECT_EQ(summary.at("calibration").at(3).at("straggler_seconds"), (std::vector{1e-4, 0.0}));
}

TEST(Report, MemoryOfTheHostIsCountedApart) {
  Description description;
  description.memory = {{"weights", 3000}, {"masters", 0}, {"optimizer", 20000, true}, {"libraries", 4000}};
  EXPECT_EQ(description.device_bytes(), 7000u);
  EXPECT_EQ(description.host_bytes(), 20000u);
  EXPECT_EQ(description.table(),
            "weights          3.00 kB\nlibraries        4.00 kB\nall              7.00 kB\nhost: optimizer  20.00 kB\n"
            "host: all        20.00 kB\n");
  const auto json = nlohmann::json::parse(description.summary());
  EXPECT_EQ(json.at("memory"), nlohmann::json::parse(R"({"weights": 3000, "masters": 0, "libraries": 4000})"));
  EXPECT_EQ(json.at("host_memory"), nlohmann::json::parse(R"({"optimizer": 20000})"));
  description.memory[2].on_host = false;
  EXPECT_EQ(description.table(), "weights    3.00 kB\noptimizer  20.00 kB\nlibraries  4.00 kB\nall        27.00 kB\n");
  EXPECT_FALSE(nlohmann::json::parse(description.summary()).contains("host_memory"));
}

TEST(Report, RanksThatShareGpusHaveNoEfficiencyAndThePeakOfTheGpus) {
  RunInfo info = eight_gpus();
  info.shared_gpus = 2;
  RunResult result = measured();
  result.calibration.reset();
  const auto summary = summary_of(info, result).line;
  EXPECT_EQ(summary.at("shared_gpus"), 2);
  EXPECT_TRUE(summary.at("scaling_efficiency").is_null());
  EXPECT_NEAR(summary.at("mfu"), 71.5e6 * 4e6 / (2 * 989e12), 1e-9);
}

TEST(Report, MfuHasBothCountsWhereAMaskHidesWork) {
  RunInfo info = eight_gpus();
  info.description.flop_per_sample = 100e6;
  info.description.layers = {{"attention", 10e6, 20e6, 5e6, 10e6}, {"linear", 20e6, 50e6}};
  const auto summary = summary_of(info, measured()).line;
  EXPECT_NEAR(summary.at("mfu").get<double>() * 0.85, summary.at("mfu_causal").get<double>(), 1e-12);
}

TEST(Report, SummaryHoldsWhatTheSensorsOfEachGpuShowed) {
  RunResult result = measured();
  result.gpus.resize(2);
  result.gpus[0].add(SensorReading{1980, 3201, 410, 50, 1e9, 0});
  result.gpus[0].add(SensorReading{1500, 3201, 694, 60, 2e9, 4});
  const auto gpus = summary_of(eight_gpus(), result).line.at("gpus");
  EXPECT_EQ(gpus.at(0).at("sm_mhz_min"), 1500);
  EXPECT_EQ(gpus.at(0).at("watts"), 552);
  EXPECT_EQ(gpus.at(0).at("throttled"), nlohmann::json({{"sw_power_cap", 0.5}}));
  EXPECT_TRUE(gpus.at(1).at("watts_max").is_null());
  EXPECT_EQ(gpus.at(1).at("readings"), 0);
}

TEST(Report, AStepIsALineWithItsTimeAndNullWhereNothingIsKnown) {
  const std::string path = testing::TempDir() + "ddptrain_step.jsonl";
  MetricsFile file(path);
  RunInfo info = eight_gpus();
  info.description.unit = "tokens";
  info.description.units_per_sample = 1024;
  Report report(info, &file);
  StepResult step;
  step.step = 20;
  step.samples = 160;
  report.step(step);
  step.gradient_norm = 0.5;
  step.samples_per_second = 2.0;
  SensorWindow gpu;
  gpu.add(SensorReading{.sm_mhz = 1500.0});
  step.gpus = {gpu, gpu};
  gpu.add(SensorReading{.sm_mhz = 1200.0});
  step.gpus.push_back(gpu);
  report.step(step);
  std::ifstream in(path);
  std::string first, second;
  std::getline(in, first);
  std::getline(in, second);
  const auto unknown = nlohmann::json::parse(first);
  EXPECT_EQ(unknown.at("tokens"), 160 * 1024);
  for (const char* name : {"gradient_norm", "tokens_per_second", "step_seconds", "exposed_comm_seconds"}) {
    EXPECT_TRUE(unknown.at(name).is_null()) << name;
  }
  EXPECT_FALSE(unknown.contains("sm_mhz"));
  EXPECT_GT(unknown.at("time"), 1.7e9);
  const auto known = nlohmann::json::parse(second);
  EXPECT_EQ(known.at("tokens_per_second"), 2048.0);
  EXPECT_EQ(known.at("gradient_norm"), 0.5);
  EXPECT_EQ(known.at("sm_mhz"), 1425.0);
  EXPECT_EQ(known.at("sm_mhz_min"), 1200.0);
  EXPECT_FALSE(known.contains("watts"));
}

TEST(MetricsFile, TellsOfPathsThatCannotBeWrittenAndOfFullDisks) {
  EXPECT_THROW(MetricsFile("/nonexistent/m.jsonl"), UsageError);
  MetricsFile full("/dev/full");
  EXPECT_THROW(full.write({}), Error);
}

TEST(MetricsFile, OneRunWritesAFileAtATime) {
  const std::string path = ::testing::TempDir() + "/metrics_lock_test.jsonl";
  {
    MetricsFile first(path);
    first.write({{"a", 1}});
    for (const bool append : {false, true}) {
      EXPECT_CONTAINS(error_message<Error>([&] { MetricsFile(path, append); }), path + ": another run writes it");
    }
    EXPECT_GT(std::filesystem::file_size(path), 0u) << "the second run has truncated it";
    MetricsFile null("/dev/null"), again("/dev/null");
  }
  MetricsFile(path, true).write({{"b", 2}});
}

TEST(MetricsFile, GoesOnAfterTheLastWholeLine) {
  const std::string path = ::testing::TempDir() + "/metrics_append_test.jsonl";
  const auto appended_to = [&](const std::string& before) {
    std::ofstream(path, std::ios::binary) << before;
    MetricsFile(path, true).write({{"b", 2}});
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return text.substr(0, text.find(",\"time\":"));
  };
  EXPECT_EQ(appended_to("{\"a\":1}\n"), "{\"a\":1}\n{\"b\":2");
  EXPECT_EQ(appended_to("{\"a\":1}\n{\"b\""), "{\"a\":1}\n{\"b\":2");
  EXPECT_EQ(appended_to("{\"a\""), "{\"b\":2");
  EXPECT_EQ(appended_to(""), "{\"b\":2");
}

}  // namespace
}  // namespace ddptrain
