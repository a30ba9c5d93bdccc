#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "runtime/device/device.h"
#include "tests/launch/process.h"
#include "tests/support/gpus.h"

namespace ddptrain {
namespace {

using nlohmann::json;

/// Runs ddpbench and returns what it wrote to its file.
json run_on(int ranks, const std::string& arguments, Outcome* outcome = nullptr) {
  const std::string path = testing::TempDir() + "ddpbench.json";
  std::filesystem::remove(path);
  const Outcome done = train_on_cpu(ranks, arguments + " --json " + path);
  if (outcome != nullptr) *outcome = done;
  EXPECT_EQ(done.exit_code, 0) << arguments << "\n" << done.output;
  std::ifstream file(path);
  return json::parse(file, nullptr, false);
}

json run(const std::string& arguments, Outcome* outcome = nullptr) {
  return run_on(2, arguments + " --device cpu", outcome);
}

json run_on_gpus(const std::string& arguments) {
  return run_on(gpu_ranks(cuda_device_count()), arguments + " --device cuda" + share_gpu_flag());
}

TEST(Ddpbench, CollectivesAreRightOnTwoRanks) {
  for (const std::string op : {"all-reduce", "reduce-scatter", "all-gather", "broadcast --root 1", "reduce --root 1",
                               "all-to-all", "send-receive"}) {
    const bool in_place = op != "all-to-all" && op != "send-receive";
    Outcome outcome;
    const json result = run(fmt::format("allreduce --op {} -b 1k -e 16K -f 4 -n 2 -w 1", op), &outcome);
    EXPECT_EQ(result["benchmark"], "allreduce");
    EXPECT_EQ(result["library"], "MPI");
    EXPECT_EQ(result["ranks"], 2);
    ASSERT_EQ(result["results"].size(), in_place ? 6u : 3u) << op;  // three sizes
    for (const json& row : result["results"]) {
      EXPECT_EQ(row["wrong"], 0) << op;
      EXPECT_GT(row["time_us"], 0.0);
    }
    EXPECT_EQ(result["results"][0]["bytes"], 1024);
    EXPECT_EQ(result["results"].back()["bytes"], 16384);
    EXPECT_EQ(result["results"].back()["in_place"], in_place);
    EXPECT_TRUE(outcome.says("#wrong")) << outcome.output;
    EXPECT_TRUE(outcome.says("# Out of bounds values : 0 OK")) << outcome.output;
  }
}

TEST(Ddpbench, GathersAndSumsBf16) {
  for (const char* op : {"all-gather", "all-reduce", "reduce", "send-receive"}) {
    const json result = run(fmt::format("allreduce --op {} --dtype bf16 -b 4K -e 4K -n 2 -w 0", op));
    EXPECT_EQ(result["results"][0]["dtype"], "bf16");
    EXPECT_EQ(result["results"][0]["wrong"], 0);
  }
}

TEST(Ddpbench, TakesTheOneGpuThatItsRankIsShown) {
  if (cuda_device_count() < 2) GTEST_SKIP() << "two GPUs are needed";
  const auto run_with = [](const std::string& gpu) {
    return run_command(
        fmt::format("timeout 200 {} -np 2 sh -c 'CUDA_VISIBLE_DEVICES={} exec {} allreduce --device cuda -b 1M -e 1M'",
                    DDP_MPIRUN, gpu, DDPTRAIN_PROGRAM));
  };
  const Outcome own = run_with("$OMPI_COMM_WORLD_LOCAL_RANK");
  EXPECT_EQ(own.exit_code, 0) << own.output;
  EXPECT_TRUE(own.says("# Out of bounds values : 0 OK")) << own.output;
  const Outcome shared = run_with("0");
  EXPECT_EQ(shared.exit_code, 2) << shared.output;
  EXPECT_TRUE(shared.says("but 1 GPU there, and each rank needs its own")) << shared.output;
}

TEST(Ddpbench, DoctorNamesNoSlowGpu) {
  if (cuda_device_count() < 1 || ranks_that_share_gpus() > 0) GTEST_SKIP() << "needs GPUs that are not shared";
  const json result = run_on_gpus("doctor --tolerance 0.3");
  ASSERT_EQ(result["results"][0]["kind"], "rank");
  EXPECT_GT(result["results"][0]["gflops"], 1000.0);
  EXPECT_GT(result["results"][0]["copy_gbs"], 1.0);
  EXPECT_TRUE(result["results"][0]["facts"].contains("SM clock")) << result.dump();
  EXPECT_EQ(result["diagnosis"].size(), 1u) << result["diagnosis"].dump();
  EXPECT_EQ(result["diagnosis"][0].get<std::string>().rfind("No slow one", 0), 0u) << result["diagnosis"].dump();
}

TEST(Ddpbench, DoctorMeasuresEveryRank) {
  Outcome outcome;
  const json result = run("doctor --seconds 0.2 --tolerance 0.01", &outcome);
  ASSERT_EQ(result["results"].size(), 2u);
  for (const json& row : result["results"]) {
    EXPECT_EQ(row["kind"], "rank");
    EXPECT_GT(row["gflops"], 0.0);
    EXPECT_GT(row["copy_gbs"], 0.0);
    EXPECT_GT(row["facts"]["time on a processor"], 0.0);
  }
  EXPECT_EQ(result["differences"].size(), 0u) << result["differences"].dump();
  EXPECT_TRUE(outcome.says("No slow one")) << outcome.output;
}

TEST(Ddpbench, SplitComparesPieces) {
  const json result = run("split --total 1MB --pieces 10 --rounds 1");
  ASSERT_EQ(result["results"].size(), 4u);  // 1, 2, 5, 10
  EXPECT_EQ(result["results"][0]["share_of_one_piece"], 1.0);
  EXPECT_EQ(result["results"][3]["bytes_each"], 100000);
}

TEST(Ddpbench, OverlapSetsComputeBesideCommunication) {
  const json result = run("overlap --layers 2 --width 64 --tokens 32 --buckets 4K,1M --rounds 1");
  EXPECT_EQ(result["gradient_bytes"], 2 * 64 * 64 * 4);
  ASSERT_EQ(result["results"].size(), 2u);
  EXPECT_EQ(result["results"][0]["buckets"], 8);
  EXPECT_EQ(result["results"][1]["buckets"], 1);
  for (const json& row : result["results"]) {
    EXPECT_GE(row["together_us"], row["compute_beside_us"]);
    const double exposed = row["together_us"].get<double>() - row["compute_alone_us"].get<double>();
    EXPECT_NEAR(row["exposed_us"].get<double>(), exposed, 1e-6);
  }
}

TEST(Ddpbench, GemmCountsForwardAndBackward) {
  const json result = run("gemm --cube 64 --tokens 16 --width 32 --vocabulary 64 --seconds 0.001 --rounds 1");
  ASSERT_EQ(result["results"].size(), 12u);
  const json& row = result["results"][1];
  EXPECT_EQ(row["pass"], "backward");
  EXPECT_NEAR(row["rate_tflops"].get<double>() * row["time_us"].get<double>() * 1e6, 4.0 * 64 * 64 * 64, 1.0);
}

TEST(Ddpbench, MemoryCountsBytesReadAndWritten) {
  const json result = run("memory --bytes 1M --rounds 1 --threads 2");
  ASSERT_EQ(result["results"].size(), 2u);
  const json& copy = result["results"][0];
  EXPECT_EQ(copy["operation"], "copy");
  EXPECT_NEAR(copy["rate_gbs"].get<double>() * copy["time_us"].get<double>() * 1e3, 2.0 * 1048576, 1.0);
}

TEST(Ddpbench, PartsOfAStepAddUp) {
  Outcome outcome;
  const json result = run("step --batch 4 --data synthetic:100", &outcome);
  std::set<std::string> parts;
  double sum = 0.0;
  for (const json& row : result["results"]) {
    parts.insert(row["part"]);
    if (row["part"] != "step") sum += row["time_us"].get<double>();
  }
  EXPECT_EQ(parts, (std::set<std::string>{"data", "forward", "backward", "exposed_communication", "optimizer",
                                          "launch_gaps", "step"}));
  EXPECT_NEAR(sum, result["results"].back()["time_us"].get<double>(), 1.0);
  EXPECT_GE(result["stragglers_us"].get<double>(), 0.0) << "the slowest rank is not below the mean";
}

TEST(Ddpbench, PartsOfAStepOfEveryMesh) {
  const std::string gpt =
      "step --device cpu --model gpt --layers 2 --width 32 --heads 4 --ff 64 --seq 16 --data synthetic:3001:64 "
      "--batch 2 ";
  struct Case {
    int ranks;
    const char* flags;
    int replicas;
  };
  for (const auto& [ranks, flags, replicas] : {Case{2, "", 2}, Case{2, "--tp 2", 1}, Case{4, "--tp 2", 2},
                                               Case{2, "--zero 3", 2}, Case{2, "--virtual-ranks 4", 2}}) {
    const json result = run_on(ranks, gpt + flags);
    EXPECT_EQ(result["ranks"], ranks) << flags;
    EXPECT_EQ(result["replicas"], replicas) << flags;
    EXPECT_EQ(result["tensor"], ranks / replicas) << flags;
    const json& step = result["results"].back();
    EXPECT_EQ(step["part"], "step");
    EXPECT_GT(step["time_us"], 0.0) << flags;
    EXPECT_EQ(result["communication_alone_us"].get<double>() > 0.0, replicas > 1) << flags;
  }
}

TEST(Ddpbench, ARankAloneExposesNoCommunication) {
  json result;
  // A round lasts a tenth of a second, but where the machine stands still.
  for (const double seconds : {0.7, 5.0, 30.0}) {
    result = run_on(1, fmt::format("step --device cpu --batch 4 --data synthetic:100 --min-seconds {}", seconds));
    if (result["rounds"] > 5) break;
  }
  EXPECT_GT(result["rounds"], 5);
  for (const json& row : result["results"]) {
    if (row["part"] == "exposed_communication") {
      EXPECT_EQ(row["time_us"], 0.0);
    }
  }
  EXPECT_EQ(result["communication_alone_us"], 0.0);
}

TEST(Ddpbench, ReplicasThatTrainOnTheirOwnExposeNoCommunication) {
  const json result = run("step --batch 4 --data synthetic:100 --overlap none");
  for (const json& row : result["results"]) {
    if (row["part"] == "exposed_communication") {
      EXPECT_EQ(row["time_us"], 0.0);
    }
  }
  EXPECT_EQ(result["communication_alone_us"], 0.0);
}

/// More threads than cores: the job takes cores from itself.
TEST(Ddpbench, SaysWhatDisturbedIt) {
  Outcome outcome;
  const json result = run_on(2, "memory --device cpu --bytes 1M --rounds 1 --threads 500", &outcome);
  EXPECT_CONTAINS(result["disturbed"].get<std::string>(), "1000 threads share ");
  EXPECT_TRUE(outcome.says("# Disturbed: 1000 threads share ")) << outcome.output;
}

/// options_test.cpp has what is refused before anything runs.
TEST(Ddpbench, MistakesAreOneMessageAndOverwriteNothing) {
  struct Mistake {
    int ranks;
    const char* arguments;
    const char* message;
  };
  const std::string path = temporary("untouched.json");
  const std::string before = "{\"benchmark\": \"gemm\", \"device\": \"of an earlier run\"}\n";
  std::ofstream(path) << before;
  for (const auto& [ranks, arguments, message] :
       {Mistake{1, "p2p", "measures copies between GPUs"},
        Mistake{2, "p2p", "without mpirun"},
        Mistake{1, "allreduce --device cpu", "at least 2 ranks"},
        Mistake{2, "allreduce --device cpu -b 1x", "--begin 1x"},
        Mistake{2, "allreduce --device cpu -b 8K -e 1K", "8192 to 1024"},
        Mistake{2, "allreduce --device cpu --graph 1", "--graph: it is for GPUs"},
        Mistake{2, "allreduce --device cpu --symmetric", "--symmetric: it is for GPUs"},
        Mistake{2, "split --device cpu --symmetric", "--symmetric: it is for GPUs"},
        Mistake{2, "overlap --device cpu --comm-ctas 4", "--comm-ctas: it is for GPUs"},
        Mistake{1, "step --device cpu --trace t.json", "--trace t.json"},
        Mistake{1, "gemm --device cuda", "--device cpu"},
        Mistake{2, "split --device cpu --total 400 --pieces 101", "more pieces than elements"},
        Mistake{2, "overlap --device cpu --buckets 2", "--buckets 2"},
        Mistake{1, "step --device cpu --batch 0", "--batch 0"},
        Mistake{1, "allreduce -b 32k -e 16G -f 2 -g 4",
                "Start: mpirun -np 4 --bind-to none ddpbench allreduce -b 32k -e 16G -f 2"},
        Mistake{2, "allreduce -t 2 -g 2 --device cpu", "Start: mpirun -np 8 "},
        Mistake{2, "broadcast --device cpu --root 2", "--root 2: there are 2 ranks"},
        Mistake{2, "step --device cpu --model gpt --data synthetic:3001:64 --pp 2", "--pp 2: the stages"},
        Mistake{2, "step --device cpu --model gpt --data synthetic:3001:64 --tp 3", "Start a multiple of 3 ranks"},
        Mistake{1, "step --device cpu --dry-run", "Leave out --describe, --dry-run"},
        Mistake{1, "step --device cpu --checkpoint x", "--checkpoint x"},
        Mistake{1, "step --device cpu --resume auto", "--resume auto"},
        Mistake{2, "step --device cpu --data synthetic:10 --batch 64", "64"}}) {
    const Outcome outcome = train_on_cpu(ranks, fmt::format("{} --json {}", arguments, path), "CUDA_VISIBLE_DEVICES=");
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_EQ(outcome.count("ddpbench: "), 1) << outcome.output;
    EXPECT_TRUE(outcome.says(message)) << outcome.output;
    EXPECT_EQ(content_of(path), before);
  }
}

TEST(Ddpbench, JsonPathMustBeWritable) {
  const Outcome outcome = train_on_cpu(2, "memory --device cpu --bytes 1M --json /nonexistent/folder/x.json");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.count("ddpbench: --json /nonexistent/folder/x.json"), 1) << outcome.output;
  EXPECT_EQ(train_on_cpu(1, "memory --device cpu --bytes 1M --json -").exit_code, 2);
  const std::string foreign = "{\"benchmark\": \"of another program\"}";
  std::ofstream(temporary("foreign.json")) << foreign;
  EXPECT_EQ(train_on_cpu(1, "memory --device cpu --bytes 1M --json " + temporary("foreign.json")).exit_code, 2);
  EXPECT_EQ(content_of(temporary("foreign.json")), foreign);
}

/// Variables of torchrun: MPI has not connected the processes.
TEST(Ddpbench, BenchmarksOfOneProcessNeedNoOtherRanks) {
  const auto run_alone = [](const std::string& arguments) {
    return run_command(fmt::format("WORLD_SIZE=4 RANK=0 LOCAL_RANK=0 timeout 600 {} {}", DDPTRAIN_PROGRAM, arguments));
  };
  for (const char* arguments :
       {"gemm --device cpu --cube 64 --tokens 16 --width 32 --vocabulary 64 --seconds 0.001 --rounds 1",
        "memory --device cpu --bytes 1M --rounds 1"}) {
    const Outcome outcome = run_alone(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_TRUE(outcome.says("WORLD_SIZE=4")) << outcome.output;
  }
  for (const char* arguments : {"--help", "--version", "step --help"}) {
    const Outcome outcome = run_alone(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  }
  for (const char* arguments : {"allreduce --device cpu", "step --device cpu --batch 4 --data synthetic:100"}) {
    const Outcome outcome = run_alone(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_TRUE(outcome.says("mpirun -np 4 ddpbench")) << outcome.output;
  }
}

TEST(Ddpbench, NotEnoughMemorySaysSo) {
  const Outcome outcome =
      run_command(fmt::format("ulimit -v 8000000; timeout 600 {} memory --device cpu --bytes 64G", DDPTRAIN_PROGRAM));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_EQ(outcome.count("ddpbench: not enough memory"), 1) << outcome.output;
}

TEST(Ddpbench, HelpOfStepIsThatOfDdptrain) {
  const Outcome outcome = train_on_cpu(2, "step --help");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(outcome.count("\n  --grad-accum"), 1) << outcome.output;
}

class OnGpus : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu_ranks(2) < 2) GTEST_SKIP() << "needs two GPUs";
  }
};

TEST_F(OnGpus, CollectivesAreRight) {
  for (const std::string op :
       {"all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce", "all-to-all", "send-receive"}) {
    const std::size_t rows = op == "all-to-all" || op == "send-receive" ? 3 : 6;
    for (const char* how : {"-d float", "-d bf16", "-d bf16 --graph=2", "-d float --symmetric"}) {
      const json result = run_on_gpus(fmt::format("allreduce --op {} {} -b 1K -e 4M -f 64 -n 3", op, how));
      EXPECT_EQ(result["library"], "NCCL");
      ASSERT_EQ(result["results"].size(), rows) << op << " " << how;
      for (const json& row : result["results"]) EXPECT_EQ(row["wrong"], 0) << op << " " << how;
    }
  }
}

TEST_F(OnGpus, TheOthersWriteTheirResults) {
  EXPECT_EQ(run_on_gpus("split --total 64MB --pieces 10 --rounds 2")["results"].size(), 4u);
  EXPECT_EQ(run_on_gpus("overlap --layers 4 --width 512 --tokens 512 --rounds 2 --buckets 64K,1M")["results"].size(),
            2u);
  const json step = run_on_gpus("step --batch 64 --data synthetic:2000");
  EXPECT_EQ(step["results"].size(), 7u);
  const auto has_readings = [](const json& rank) { return rank["readings"] > 0; };
  EXPECT_LE(std::count_if(step["gpus"].begin(), step["gpus"].end(), has_readings), cuda_device_count());
}

TEST(OnOneGpu, MeasuresCopiesProductsAndMemory) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs a GPU";
  const json copies = run_on(1, "p2p --bytes 1MB --repeats 2");
  const std::size_t gpus = copies["gpus"].size();
  EXPECT_EQ(copies["results"].size(), 8 * gpus * gpus + 3 * gpus);
  for (const json& row : copies["results"]) EXPECT_GT(row.value("bandwidth_gbs", 1.0), 0.0) << row;
  EXPECT_EQ(run_on(1, "gemm --device cuda --cube 512 --tokens 512 --rounds 2")["results"].size(), 12u);
  EXPECT_EQ(run_on(1, "memory --device cuda --bytes 64MB --rounds 2")["results"].size(), 4u);
}

}  // namespace
}  // namespace ddptrain
