#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "runtime/device/device.h"
#include "tests/launch/process.h"
#include "tests/support/gpus.h"

/// `ddptrain` at its defaults under the settings that people sweep: each run ends with the parameters of the plain run,
/// or with one clear message. None crashes, none hangs, and each says the path that NCCL's log shows.

namespace ddptrain {
namespace {

/// With two ranks a sum does not depend on the order of its terms, so that all runs must end with the same bits. With
/// more, runs end with the same loss but for rounding.
int ranks() { return gpu_ranks(2); }

struct Setting {
  std::string text;             ///< Assignments before mpirun.
  bool may_be_refused = false;  ///< One message and exit code 2 are an answer, too.
};

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const char* level : {"LOC", "NVL", "PIX", "PXB", "PHB", "SYS", "0", "1", "2", "3", "4"}) {
    all.push_back({fmt::format("NCCL_P2P_LEVEL={}", level)});
  }
  for (const char* text : {"NCCL_P2P_DISABLE=1",
                           "NCCL_SHM_DISABLE=1",
                           "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1",
                           "NCCL_CUMEM_ENABLE=0",
                           "NCCL_WIN_ENABLE=0",
                           "NCCL_ALGO=Ring",
                           "NCCL_ALGO=Tree",
                           "NCCL_ALGO=^Ring",
                           "NCCL_ALGO=^Tree",
                           "NCCL_ALGO=allreduce:tree",
                           "NCCL_PROTO=LL",
                           "NCCL_PROTO=LL128",
                           "NCCL_PROTO=Simple",
                           "NCCL_PROTO=^LL",
                           "NCCL_MAX_NCHANNELS=1",
                           "NCCL_MIN_NCHANNELS=32",
                           "NCCL_NTHREADS=64",
                           "NCCL_BUFFSIZE=1048576",
                           "NCCL_IB_DISABLE=1",
                           "NCCL_GRAPH_REGISTER=1",
                           "NCCL_DEBUG=INFO",
                           "NCCL_DEBUG=TRACE",
                           "CUDA_DEVICE_MAX_CONNECTIONS=1",
                           "CUDA_LAUNCH_BLOCKING=1",
                           "CUDA_MODULE_LOADING=EAGER"}) {
    all.push_back({text});
  }
  if (cuda_device_count() > 1) all.push_back({"CUDA_VISIBLE_DEVICES=1,0"});
  for (const char* text : {"NCCL_ALGO=nonsense", "NCCL_PROTO=nonsense", "NCCL_ALGO=NVLS", "NCCL_ALGO=CollNetDirect"}) {
    all.push_back({text, true});
  }
  return all;
}

/// DDPTRAIN_TEST_PAIRS of them (12), drawn with DDPTRAIN_TEST_SEED (1).
std::vector<Setting> pairs() {
  const auto number = [](const char* name, unsigned otherwise) {
    const char* text = std::getenv(name);
    return text != nullptr ? static_cast<unsigned>(std::atoi(text)) : otherwise;
  };
  const std::vector<Setting> single = settings();
  std::mt19937 random(number("DDPTRAIN_TEST_SEED", 1));
  std::vector<Setting> drawn;
  while (drawn.size() < number("DDPTRAIN_TEST_PAIRS", 12)) {
    const Setting& a = single[random() % single.size()];
    const Setting& b = single[random() % single.size()];
    const auto name = [](const Setting& s) { return s.text.substr(0, s.text.find('=')); };
    if (name(a) == name(b)) continue;
    // Both forced together, an algorithm may lack the protocol.
    const auto chooses = [&](const char* what) { return name(a) == what || name(b) == what; };
    const bool both = chooses("NCCL_ALGO") && chooses("NCCL_PROTO");
    drawn.push_back({a.text + " " + b.text, a.may_be_refused || b.may_be_refused || both});
  }
  return drawn;
}

struct LoggedRun {
  Outcome outcome;
  std::string log;  ///< Of NCCL on rank 0.
};

std::string metrics_file() { return temporary("metrics.jsonl"); }

LoggedRun train(const std::string& environment, const std::string& arguments = "") {
  const std::string log = temporary("nccl.log");
  for (const std::string& path : {log, metrics_file()}) std::filesystem::remove(path);
  // Both ranks write there: what one of them says is enough.
  const bool chosen = environment.find("NCCL_DEBUG=") != std::string::npos;
  const std::string debug = fmt::format("{}NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING ", chosen ? "" : "NCCL_DEBUG=INFO ");
  const std::string defaults = "NCCL_NVLS_ENABLE=0 NCCL_SOCKET_IFNAME=lo ";
  const std::string program =
      fmt::format("{} --model cnn --batch 512 --data synthetic:16384 --steps 20 --baseline off{}", DDPTRAIN_PROGRAM,
                  share_gpu_flag());
  LoggedRun run;
  run.outcome =
      run_command(fmt::format("{}{}NCCL_DEBUG_FILE={} {} timeout 90 {} -np {} {} --metrics {} {}", defaults, debug, log,
                              environment, DDP_MPIRUN, ranks(), program, metrics_file(), arguments));
  run.log = content_of(log);
  return run;
}

/// The summary of a plain run at the defaults.
nlohmann::json plain_summary() {
  const LoggedRun plain = train("", "--symmetric off");
  EXPECT_EQ(plain.outcome.exit_code, 0) << plain.outcome.output;
  return plain.outcome.exit_code == 0 ? summary_in(metrics_file())
                                      : nlohmann::json{{"parameter_hash", ""}, {"loss", 0}};
}

void expect_same_training(const nlohmann::json& summary, const nlohmann::json& plain) {
  if (ranks() == 2) {
    EXPECT_EQ(summary.at("parameter_hash"), plain.at("parameter_hash"));
  } else {
    EXPECT_NEAR(summary.at("loss").get<double>(), plain.at("loss").get<double>(), 0.02);
  }
}

class NcclSettings : public testing::Test {
 protected:
  void SetUp() override {
    if (ranks() < 2) GTEST_SKIP() << "needs two GPUs, here are " << cuda_device_count();
  }

  static void check(const Setting& setting, const nlohmann::json& plain) {
    SCOPED_TRACE(setting.text);
    const LoggedRun run = train(setting.text);
    const std::string& output = run.outcome.output;
    if (setting.may_be_refused && run.outcome.exit_code == 2) {
      EXPECT_EQ(run.outcome.count("ddptrain: "), 1) << output;
      EXPECT_TRUE(run.outcome.says("NCCL_")) << output;
      EXPECT_FALSE(run.outcome.says("takes one rank per GPU")) << output;
      return;
    }
    ASSERT_EQ(run.outcome.exit_code, 0) << output;
    const auto summary = summary_in(metrics_file());
    expect_same_training(summary, plain);
    EXPECT_NE(summary.at("nccl").at("version"), "unknown");  // although the user has the log, too
    check_path(summary.at("gradient_path"), run);
  }

  static void check_path(const std::string& path, const LoggedRun& run) {
    const bool symmetric = run.log.find("AllReduce [Symmetric]") != std::string::npos;
    EXPECT_EQ(path.rfind("symmetric", 0) == 0, symmetric) << path << "\n" << run.outcome.output;
    const std::string line = path == "plain" ? "Gradients: NCCL plain (" : "Gradients: NCCL symmetric";
    EXPECT_EQ(run.outcome.count(line), 1) << run.outcome.output;
  }
};

TEST_F(NcclSettings, EachEndsWithTheParametersOfThePlainRunOrOneMessage) {
  const nlohmann::json plain = plain_summary();
  for (const Setting& setting : settings()) check(setting, plain);
}

TEST_F(NcclSettings, PairsEndWithTheParametersOfThePlainRunOrOneMessage) {
  const nlohmann::json plain = plain_summary();
  for (const Setting& setting : pairs()) check(setting, plain);
}

TEST_F(NcclSettings, TheDefaultIsSymmetricAndFused) {
  const LoggedRun run = train("");
  ASSERT_EQ(run.outcome.exit_code, 0) << run.outcome.output;
  EXPECT_TRUE(run.outcome.says("Gradients: NCCL symmetric + fused last bucket")) << run.outcome.output;
  check_path("symmetric+fused", run);
}

TEST_F(NcclSettings, TwoNodesOfOneGpu) {
  if (ranks() > 2) GTEST_SKIP() << "is for two ranks";
  const nlohmann::json plain = plain_summary();
  const std::string rank = fmt::format("{} --model cnn --batch 512 --data synthetic:16384 --steps 20 --baseline off{}",
                                       DDPTRAIN_PROGRAM, share_gpu_flag());
  const Outcome outcome = run_command(
      fmt::format("NCCL_NVLS_ENABLE=0 NCCL_SOCKET_IFNAME=lo timeout 90 {0} -np 1 -x NCCL_HOSTID=a {1} --metrics {2} : "
                  "-np 1 -x NCCL_HOSTID=b {1} --metrics {2}",
                  DDP_MPIRUN, rank, metrics_file()));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(summary_in(metrics_file()).at("parameter_hash"), plain.at("parameter_hash"));
  EXPECT_TRUE(outcome.says("Gradients: NCCL plain (NCCL_HOSTID is set")) << outcome.output;
}

TEST_F(NcclSettings, ShardedStateNeedsAnAlgorithmThatCanReduceScatter) {
  const LoggedRun tree = train("NCCL_ALGO=Tree", "--zero 1");
  EXPECT_EQ(tree.outcome.exit_code, 2) << tree.outcome.output;
  EXPECT_EQ(tree.outcome.count("ddptrain: "), 1) << tree.outcome.output;
  EXPECT_TRUE(tree.outcome.says("cannot reduce-scatter")) << tree.outcome.output;
  EXPECT_TRUE(tree.outcome.says("NCCL_ALGO=Tree")) << tree.outcome.output;
  const LoggedRun ring = train("NCCL_ALGO=Ring", "--zero 1");
  EXPECT_EQ(ring.outcome.exit_code, 0) << ring.outcome.output;
}

TEST_F(NcclSettings, RanksWithDifferentAlgorithmsAreRefused) {
  const std::string rank =
      fmt::format("{} --model cnn --data synthetic:16384 --steps 20{}", DDPTRAIN_PROGRAM, share_gpu_flag());
  const Outcome outcome =
      run_command(fmt::format("timeout 90 {0} -np 1 -x NCCL_ALGO=Ring {1} : -np 1 {1}", DDP_MPIRUN, rank));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_EQ(outcome.count("ddptrain: "), 1) << outcome.output;
  EXPECT_TRUE(outcome.says("NCCL_ALGO=Ring")) << outcome.output;
}

}  // namespace
}  // namespace ddptrain
