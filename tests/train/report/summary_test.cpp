#include "runtime/train/report/summary.h"

#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <limits>

#include "tests/support/says.h"

namespace ddptrain {
namespace {

constexpr const char* kHash = "4b80f0c2ce6edec4a06d37eaafda0dd2";

RunInfo two_cpus() {
  RunInfo info;
  info.description.device = "cpu";
  info.description.unit = "images";
  info.description.mesh.replicas = 2;
  info.description.flop_per_sample = 71.5e6;
  info.epochs = 1;
  info.steps = 468;
  return info;
}

/// README's example, in which no part of the difference is beyond the noise.
RunResult measured_on_cpus() {
  RunResult result;
  result.epochs.push_back({1, 468, 0.53291, 0.8, 0.4, 0.8741, 2962.87});
  result.rate = {2972.0, 2814.0, 3061.0, 5, 20.0};
  result.train_seconds = 20.22;
  result.parameter_hash = kHash;
  Calibration c;
  c.samples_per_second = 3098.1;
  c.baseline_per_second = 1635.5;
  c.scaling_efficiency = {0.947, 0.022};
  c.step_seconds = 41315.6e-6;
  c.alone_seconds = 39132.3e-6;
  c.compute_step_seconds = {40.94e-3, 39.82e-3};
  c.compute_step_mean_seconds = 40.38e-3;
  c.rank_0 = {1.014, 0.05};
  c.together = {1248.6e-6, 2294.2e-6};
  c.stragglers = {558.9e-6, 2756.8e-6};
  c.exposed = {375.9e-6, 3838.2e-6};
  c.rounds.resize(5);
  result.calibration = c;
  return result;
}

std::string line_of(const std::string& label, const RunInfo& info, const RunResult& result) {
  const std::string text = fmt::format("\n{}", summary_text(info, result));
  const std::size_t begin = text.find(fmt::format("\n{}", label));
  return begin == std::string::npos ? "" : text.substr(begin + 1, text.find('\n', begin + 1) - begin - 1);
}

std::ptrdiff_t lines_in(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

TEST(Summary, ResultsComeFirstInAFewLines) {
  EXPECT_EQ(summary_text(two_cpus(), measured_on_cpus()),
            "Result   test accuracy 87.41%                  1 epoch, 468 steps, 20.2 s\n"
            "Speed    2,970 images/s (2,810 to 3,060)\n"
            "Scaling  94.7% (92.5 to 96.9) of linear        2 ranks 3,098 images/s; one rank alone 1,636\n"
            "Step     41.3 ms, 2.2 ms longer than on one rank; no single cause beyond the noise\n"
            "Hash     4b80f0c2ce6edec4a06d37eaafda0dd2      the same command gives the same hash\n");
}

TEST(Summary, OneRankHasNoScaling) {
  RunInfo info = two_cpus();
  info.description.mesh.replicas = 1;
  EXPECT_EQ(summary_text(info, measured_on_cpus()),
            "Result   test accuracy 87.41%                  1 epoch, 468 steps, 20.2 s\n"
            "Speed    2,970 images/s (2,810 to 3,060)\n"
            "Hash     4b80f0c2ce6edec4a06d37eaafda0dd2      the same command gives the same hash\n");
}

TEST(Summary, OnlyRoundsOfGroupsPromiseTheSameHash) {
  RunResult result = measured_on_cpus();
  result.outer.emplace().rounds = true;
  EXPECT_TRUE(line_of("Hash", two_cpus(), result).ends_with("the same command gives the same hash"));
  result.outer->rounds = false;
  EXPECT_TRUE(line_of("Hash", two_cpus(), result).ends_with("depends on when differences arrive"));
}

/// The line of the scaling carries its own mark.
TEST(Summary, ADisturbedRunWithoutABaselineIsMarked) {
  RunResult result = measured_on_cpus();
  result.disturbed.why = "other programs took 52% of the cores";
  EXPECT_EQ(line_of("Speed", two_cpus(), result), "Speed    2,970 images/s (2,810 to 3,060)");
  const std::string marked =
      "Speed    2,970 images/s (2,810 to 3,060), disturbed: other programs took 52% of the cores";
  RunInfo one_rank = two_cpus();
  one_rank.description.mesh.replicas = 1;
  EXPECT_EQ(line_of("Speed", one_rank, result), marked);
  result.calibration.reset();
  EXPECT_EQ(line_of("Speed", two_cpus(), result), marked);
}

TEST(Summary, ACauseIsAFindingOnlyIfItsIntervalExcludesZero) {
  RunResult result = measured_on_cpus();
  Calibration& c = *result.calibration;
  const auto expect_causes = [&](const char* causes) {
    EXPECT_EQ(line_of("Step", two_cpus(), result),
              fmt::format("Step     41.3 ms, 2.2 ms longer than on one rank{}", causes));
  };
  c.exposed = {1.9e-3, 0.4e-3};
  expect_causes(": 1.9 +- 0.4 ms exposed communication");
  c.stragglers = {0.2e-3, 0.1e-3};
  expect_causes(": 1.9 +- 0.4 ms exposed communication, 0.2 +- 0.1 ms stragglers (rank 0 is 1.4% above the mean)");
  c.stragglers = {0.31e-3, 0.28e-3};
  c.exposed = {};
  expect_causes(": 0.31 +- 0.28 ms stragglers (rank 0 is 1.4% above the mean)");
  c.stragglers = {5.3e-3, 4.7e-3};
  expect_causes(": 5.3 +- 4.7 ms stragglers (rank 0 is 1.4% above the mean)");
  c.stragglers = {0.2e-3, 0.21e-3};
  c.exposed = {1.9e-3, 2.0e-3};
  c.together = {2e-3, 0.05e-3};
  expect_causes(": 2.00 +- 0.05 ms contention");
  c.rank_0 = {0.969, 0.02};
  expect_causes(": 2.00 +- 0.05 ms contention (rank 0 is 3.1% faster than the mean)");
}

TEST(Summary, NoRankIsNamedIfRanksAreSlowestByTurns) {
  RunResult result = measured_on_cpus();
  Calibration& c = *result.calibration;
  c.stragglers = {1.0e-3, 0.2e-3};
  c.slowest_compute_step_seconds = c.compute_step_mean_seconds + c.stragglers.value;
  EXPECT_TRUE(
      line_of("Step", two_cpus(), result).ends_with(": 1.0 +- 0.2 ms stragglers (rank 0 is 1.4% above the mean)"));
  c.compute_step_seconds = {40.40e-3, 40.36e-3};
  EXPECT_TRUE(line_of("Step", two_cpus(), result).ends_with(": 1.0 +- 0.2 ms stragglers (ranks are slowest by turns)"));
}

TEST(Summary, ADifferenceWithinTheNoiseIsNone) {
  RunResult result = measured_on_cpus();
  Calibration& c = *result.calibration;
  c.scaling_efficiency.half_width = 0.0495;
  c.scaling_efficiency.value = 0.97;
  EXPECT_EQ(line_of("Step", two_cpus(), result), "Step     41.3 ms, as long as on one rank within the noise");
  c.exposed = {1.9e-3, 0.4e-3};
  EXPECT_EQ(line_of("Step", two_cpus(), result),
            "Step     41.3 ms, as long as on one rank within the noise; beyond the noise: 1.9 +- 0.4 ms exposed "
            "communication");
  c.scaling_efficiency = {1.02, 0.01};
  c.alone_seconds = 42.1e-3;
  c.exposed = {0.0, 1.0};
  EXPECT_EQ(line_of("Step", two_cpus(), result),
            "Step     41.3 ms, 0.78 ms shorter than on one rank; no single cause beyond the noise");
}

TEST(Summary, ScalingIsAlwaysANumber) {
  RunResult result = measured_on_cpus();
  Calibration& c = *result.calibration;
  const auto scaling = [&] { return line_of("Scaling", two_cpus(), result); };
  c.scaling_efficiency = {0.71, 0.14};
  EXPECT_EQ(scaling(), "Scaling  71% (57 to 85) of linear              2 ranks 3,098 images/s; one rank alone 1,636");
  c.scaling_efficiency.half_width = 0.0501;  // 10.02 points wide
  EXPECT_EQ(scaling().find("Scaling  71% (66 to 76) of linear"), 0u);
  c.scaling_efficiency.half_width = 0.0499;
  EXPECT_EQ(scaling().find("Scaling  71.0% (66.0 to 76.0) of linear"), 0u);
  c.scaling_efficiency.half_width = std::numeric_limits<double>::infinity();
  EXPECT_EQ(scaling().find("Scaling  71% (one round: no interval) of linear"), 0u);
  c.scaling_efficiency = {0.05, 0.08};
  EXPECT_EQ(scaling().find("Scaling  5% (0 to 13) of linear"), 0u) << "no efficiency is below 0";
  c.scaling_efficiency = {0.80, 2.96};
  EXPECT_EQ(scaling().find("Scaling  80% of linear, not known better than 0 to 376%"), 0u) << scaling();
  EXPECT_EQ(line_of("Step", two_cpus(), result), "Step     41.3 ms");
}

TEST(Summary, AMeasurementThatNeededLessTimeThanWasAskedForSaysSo) {
  RunResult result = measured_on_cpus();
  result.calibration->unspent_limit_seconds = 60.0;
  result.calibration->seconds = 8.31;
  EXPECT_EQ(
      line_of("Scaling", two_cpus(), result),
      "Scaling  94.7% (92.5 to 96.9) of linear        2 ranks 3,098 images/s; one rank alone 1,636; 8.3 of 60.0 s "
      "sufficed");
}

/// However narrow the interval is.
TEST(Summary, ADisturbedRunSaysSoAndNamesNoCauses) {
  RunResult result = measured_on_cpus();
  Calibration& c = *result.calibration;
  c.disturbed.why = "other programs took 52% of the cores";
  c.disturbed.by_others = true;
  c.exposed = {1.9e-3, 0.4e-3};
  c.scaling_efficiency = {0.99, 0.16};
  EXPECT_EQ(line_of("Scaling", two_cpus(), result),
            "Scaling  99% (83 to 115) of linear, disturbed: other programs took 52% of the cores");
  c.scaling_efficiency = {0.547, 0.004};
  EXPECT_EQ(line_of("Scaling", two_cpus(), result),
            "Scaling  54.7% (54.3 to 55.1) of linear, disturbed: other programs took 52% of the cores");
  EXPECT_EQ(line_of("Step", two_cpus(), result),
            "Step     41.3 ms without waits for cores; causes cannot be told apart");
  c.counts_waits = true;
  EXPECT_EQ(line_of("Step", two_cpus(), result), "Step     41.3 ms; causes cannot be told apart");
}

TEST(Summary, NumbersHaveThreeDigits) {
  RunInfo info = two_cpus();
  RunResult result = measured_on_cpus();
  for (const auto& [rate, text] : {std::pair(4012345.67, "4,010,000"),
                                   {999600.0, "1,000,000"},
                                   {123.44, "123"},
                                   {41.26, "41.3"},
                                   {9.996, "10.0"},
                                   {0.05333, "0.0533"}}) {
    result.rate = {rate, rate, rate, 1, 0.7};
    EXPECT_EQ(line_of("Speed", info, result), fmt::format("Speed    {} images/s", text));
  }
  result.calibration->scaling_efficiency = {0.75, 0.01};
  for (const auto& [seconds, text] : {std::pair(1.2345, "1,230 ms, 310 ms"),
                                      {1e-3, "1.00 ms, 0.25 ms"},
                                      {999.4e-6, "999 us, 250 us"},
                                      {1e-4, "100 us, 25 us"}}) {
    result.calibration->step_seconds = seconds;
    result.calibration->alone_seconds = 0.75 * seconds;
    EXPECT_EQ(line_of("Step", info, result).find(fmt::format("Step     {} longer", text)), 0u)
        << line_of("Step", info, result);
  }
  result.epochs.back().test_loss = 4.2e-5;
  info.description.unit = "tokens";
  EXPECT_CONTAINS(line_of("Result", info, result), "validation loss 0.0000420, ");
}

TEST(Summary, LanguageModelsHaveAValidationLossAndTokens) {
  RunInfo info = two_cpus();
  info.description.unit = "tokens";
  info.description.units_per_sample = 1024;
  RunResult result = measured_on_cpus();
  result.epochs.back().test_loss = 3.21;
  result.nonfinite_steps = 2;
  EXPECT_EQ(line_of("Result", info, result),
            "Result   validation loss 3.2100, perplexity 24.8  1 epoch, 468 steps (2 left out: loss or gradient NaN or "
            "infinite), 20.2 s");
  EXPECT_EQ(line_of("Speed", info, result), "Speed    3,040,000 tokens/s (2,880,000 to 3,130,000)");
  EXPECT_CONTAINS(line_of("Scaling", info, result), "2 ranks 3,172,000 tokens/s; one rank alone 1,675,000");
}

/// Everything that a line can say.
RunInfo gpus(int ranks) {
  RunInfo info = two_cpus();
  info.description.device = "cuda";
  info.description.mesh.replicas = ranks;
  info.gradient_path = {"plain", "NCCL plain", "NCCL_PROTO is set"};
  info.peak = {989e12, "H200 SXM, bf16, data sheet"};
  return info;
}

RunResult of_gpus() {
  RunResult result = measured_on_cpus();
  result.rate = {4e6, 3.9e6, 4.1e6, 7, 8.4};
  result.nccl = NcclUsage{"2.28.9", "Ring", "LL128", "P2P/CUMEM", 16};
  result.gpus.resize(2);
  result.gpus[1].add(SensorReading{1500, 3201, 694, 60, 2.5e9, 4});
  result.clocks = {7, 3};
  return result;
}

TEST(Summary, GpusHaveMfuMemoryAndWhatNcclUsed) {
  const std::string text = summary_text(gpus(2), of_gpus());
  EXPECT_LE(lines_in(text), 10) << text;
  for (const char* line :
       {"\nSpeed    4,000,000 images/s (3,900,000 to 4,100,000)  MFU 14.5%: 143 of 989 TFLOP/s per "
        "GPU; a GPU's clock fell in 3 of 7 windows\n",
        "\nMemory   2.50 GB in use on a GPU at most\n",
        "\nNCCL     Ring, LL128, P2P/CUMEM                gradients: NCCL plain (NCCL_PROTO is set)\n"}) {
    EXPECT_CONTAINS(text, line);
  }
  RunInfo on_host = gpus(2);
  on_host.description.memory = {{"weights", 1'000'000'000}, {"optimizer", 3'000'000'000, true}, {"masters", 0, true}};
  EXPECT_CONTAINS(summary_text(on_host, of_gpus()),
                  "\nMemory   2.50 GB in use on a GPU at most       rank 0 keeps 3.00 GB on its host\n");
  const std::string alone = summary_text(gpus(1), of_gpus());
  EXPECT_EQ(lines_in(alone), 4) << alone;
  EXPECT_EQ(alone.find("NCCL"), std::string::npos) << alone;
  RunResult unknown = of_gpus();
  unknown.nccl = NcclUsage{};
  unknown.nccl->transport = "SHM";
  EXPECT_EQ(line_of("NCCL", gpus(2), unknown).find("NCCL     SHM   "), 0u);
}

TEST(Summary, AnUnknownPeakIsNoMfu) {
  RunInfo info = gpus(1);
  info.peak = {};
  RunResult result = of_gpus();
  result.clocks = {};
  EXPECT_CONTAINS(line_of("Speed", info, result), "  286 TFLOP/s per GPU; --peak-tflops N gives MFU");
}

TEST(Summary, RanksThatShareGpusHaveNoEfficiency) {
  RunInfo info = gpus(8);
  info.shared_gpus = 1;
  RunResult result = of_gpus();
  result.calibration.reset();
  EXPECT_EQ(line_of("Scaling", info, result), "Scaling  not measured: 8 ranks share 1 GPU");
  EXPECT_CONTAINS(line_of("Speed", info, result), "MFU 28.9%: 286 of 989");
}

TEST(Summary, VirtualRanksSayWhatTheHashMeans) {
  RunInfo info = two_cpus();
  info.description.virtual_ranks = 4;
  EXPECT_EQ(line_of("Hash", info, measured_on_cpus()),
            fmt::format("Hash     {}      the same on 1 rank and on 4: --virtual-ranks", kHash));
  info.description.mesh = {1, 1, 2};
  EXPECT_EQ(line_of("Hash", info, measured_on_cpus()),
            fmt::format("Hash     {}      the same on every mesh with --tp 2: --virtual-ranks", kHash));
  info.description.mesh = {1, 2, 1};
  info.other_tensor = true;
  EXPECT_EQ(line_of("Hash", info, measured_on_cpus()),
            fmt::format("Hash     {}      depends on when --tp changed", kHash));
}

TEST(Summary, EveryAxisOfAMeshHasItsShareAndItsBytes) {
  RunInfo info = two_cpus();
  RunResult result = measured_on_cpus();
  result.waits_for_stages = 0.25;
  result.in_split_layers = 0.125;
  result.waits_for_replicas = 0.0625;
  info.description.sends = {{"data", "backward", 3, 1500000},
                            {"gather", "use", 2, 500000},
                            {"tensor", "forward", 4, 2000000},
                            {"tensor", "backward", 4, 3000000}};
  for (const char* label : {"Pipeline", "Tensor", "Data"}) EXPECT_EQ(line_of(label, info, result), "");
  EXPECT_CONTAINS(line_of("Sent", info, result), "data 1.50 MB, ");
  result.calibration.reset();
  EXPECT_CONTAINS(line_of("Data", info, result), "2 replicas, --zero 0");
  info.description.mesh = {2, 2, 2};
  info.description.passes = 3;
  info.zero = 3;
  for (const char* line :
       {"\nPipeline 25.0% of the time waiting for other stages; equal stages would wait 25.0%  2 stages, ",
        "\nTensor   12.5% of the time in sums over split layers  2 ranks split each layer\n",
        "\nData     6.25% of the time waiting for gradients and weights  2 replicas, --zero 3\n",
        "\nSent     data 1.50 MB, gather 500.00 kB, tensor 5.00 MB  by rank 0 in a step\n"}) {
    EXPECT_CONTAINS(summary_text(info, result), line);
  }
  EXPECT_EQ(line_of("Scaling", info, result), "Scaling  not measured: no rank has the whole model");
  info.baseline = false;
  result.waits_for_replicas.reset();
  result.waits_for_stages.reset();  // a short run
  for (const char* label : {"Scaling", "Pipeline", "Data"}) EXPECT_EQ(line_of(label, info, result), "") << label;
  info.description.device = "cuda";  // its host does not wait
  EXPECT_CONTAINS(line_of("Pipeline", info, result), "equal stages would wait 25.0%");
}

TEST(Summary, AResumedRunSaysWhichStepsItsTimeIsOf) {
  RunInfo info = two_cpus();
  info.resumed_at = 288;
  EXPECT_CONTAINS(line_of("Result", info, measured_on_cpus()), "468 steps, 180 of them here in 20.2 s");
}

TEST(Summary, WhatWasNotMeasuredHasNoLine) {
  RunResult result = measured_on_cpus();
  result.rate = {};
  result.calibration.reset();
  const std::string text = summary_text(two_cpus(), result);
  EXPECT_EQ(lines_in(text), 2) << text;
  for (const char* part : {"nan", "n/a", "/s", "Scaling", "Step"})
    EXPECT_EQ(text.find(part), std::string::npos) << text;
}

}  // namespace
}  // namespace ddptrain
