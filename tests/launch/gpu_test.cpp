#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "runtime/core/process/host.h"
#include "runtime/device/device.h"
#include "tests/launch/process.h"
#include "tests/support/gpus.h"

// ddptrain as users start it, on this machine's GPUs: a rank for each, at most four, and all settings of communication
// at their defaults where nothing else is said.

namespace ddptrain {
namespace {

const std::string kCnn = "--data synthetic:8192 --batch 512 --steps 60 ";
/// Sizes that FP8 takes.
const std::string kGpt =
    "--model gpt --layers 2 --width 256 --heads 4 --ff 1024 --seq 128 --data synthetic:200000:64 --batch 8 --steps 40 "
    "--optimizer adamw --lr 0.005 ";
const std::string kLlama =
    "--model llama --layers 2 --width 256 --heads 8 --key-heads 4 --head-size 64 --ff 512 --qkv-bias on --seq 128 "
    "--data synthetic:200000:64 --batch 8 --steps 40 --optimizer adamw --lr 0.005 ";

int ranks() { return gpu_ranks(4); }

class Gpus : public testing::Test {
 protected:
  void SetUp() override {
    if (ranks() == 0) GTEST_SKIP() << "no GPU on this machine";
  }

  static std::string metrics_file() { return testing::TempDir() + "ddptrain_gpus.jsonl"; }

  static Outcome run(int ranks, const std::string& arguments) {
    std::filesystem::remove(metrics_file());
    return run_command(fmt::format("timeout 200 {} -np {} {} --device cuda {}{} --metrics {}", DDP_MPIRUN, ranks,
                                   DDPTRAIN_PROGRAM, share_gpu_flag(), arguments, metrics_file()));
  }

  /// Of a run that must succeed.
  static nlohmann::json summary_of(int ranks, const std::string& arguments) {
    const Outcome outcome = run(ranks, arguments);
    EXPECT_EQ(outcome.exit_code, 0) << arguments << '\n' << outcome.output;
    if (outcome.exit_code != 0) return {{"parameter_hash", outcome.output}};
    return summary_in(metrics_file());
  }

  static std::string hash_of(const std::string& arguments) {
    return summary_of(ranks(), arguments + " --baseline off").at("parameter_hash");
  }
};

TEST_F(Gpus, TrainTheCnnByTheFastestPathAtTheDefaults) {
  const nlohmann::json summary = summary_of(ranks(), kCnn);
  EXPECT_EQ(summary.at("device"), "cuda");
  EXPECT_EQ(summary.at("precision"), "bf16");
  EXPECT_EQ(summary.at("world_size"), ranks());
  EXPECT_EQ(summary.at("gradient_path"), ranks() > 1 ? "symmetric+fused" : "none")
      << summary.at("gradient_path_reason");
  EXPECT_LT(summary.at("test_loss"), 2.0) << "ln 10 is where it began";
  EXPECT_EQ(summary.at("nonfinite_steps"), 0);
  if (ranks() > cuda_device_count()) {
    EXPECT_EQ(summary.at("shared_gpus"), cuda_device_count());
    EXPECT_TRUE(summary.at("scaling_efficiency").is_null());
  } else {
    EXPECT_EQ(summary.at("shared_gpus"), 0);
    EXPECT_GT(summary.at("scaling_efficiency"), 0.0);
  }
}

/// None of these changes how gradients add up.
TEST_F(Gpus, MayBeShownToTheirRankOnly) {
  if (cuda_device_count() < 2) GTEST_SKIP() << "two GPUs are needed";
  const std::string arguments = kCnn + "--device cuda --baseline off --metrics " + metrics_file();
  const auto run_with = [&](const std::string& gpu) {
    return run_command(fmt::format("timeout 200 {} -np 2 sh -c 'CUDA_VISIBLE_DEVICES={} exec {} {}'", DDP_MPIRUN, gpu,
                                   DDPTRAIN_PROGRAM, arguments));
  };
  const std::string expected = summary_of(2, kCnn + " --baseline off").at("parameter_hash");
  std::filesystem::remove(metrics_file());
  const Outcome own = run_with("$OMPI_COMM_WORLD_LOCAL_RANK");
  EXPECT_EQ(own.exit_code, 0) << own.output;
  EXPECT_EQ(summary_in(metrics_file()).at("parameter_hash"), expected);
  const Outcome shared = run_with("0");
  EXPECT_EQ(shared.exit_code, 2) << shared.output;
  EXPECT_TRUE(shared.says("but 1 GPU there, and each rank needs its own")) << shared.output;
}

TEST_F(Gpus, EndWithTheSameParametersWhateverIsOverlappedOrCaptured) {
  for (const std::string& model : {kCnn, kGpt, kLlama}) {
    const std::string expected = hash_of(model);
    for (const char* flags : {"--graph off --log-every 7", "--overlap off --verify-every 10"}) {
      EXPECT_EQ(hash_of(model + flags), expected) << flags;
    }
    if (ranks() > 2) continue;  // two terms have one sum
    for (const char* flags :
         {"--fused-sum off --on-nonfinite skip", "--symmetric off --bucket-mb 1", "--comm mpi --graph off"}) {
      EXPECT_EQ(hash_of(model + flags), expected) << flags;
    }
  }
}

TEST_F(Gpus, TrainAGptWithoutMasterWeightsToTheSameBits) {
  const std::string common = kGpt + "--moments bf16 --master off --virtual-ranks 4 ";
  const nlohmann::json one = summary_of(1, common + " --baseline off");
  EXPECT_LT(one.at("test_loss"), 3.9) << "ln 64 = 4.16 is where it began";
  if (ranks() == 1 || ranks() == 3) return;
  for (const char* flags : {"", "--zero 1", "--zero 2", "--zero 3", "--zero 1 --fused-sum off", "--graph off"}) {
    EXPECT_EQ(hash_of(common + flags), one.at("parameter_hash").get<std::string>()) << flags;
  }
  if (ranks() > 2) return;  // two terms have one sum
  const std::string direct = kGpt + "--moments bf16 --master off ";
  EXPECT_EQ(hash_of(direct + "--zero 1"), hash_of(direct)) << "ranks write each other's weights";
}

/// Matrices are dealt among the GPUs; the bits are those of one.
TEST_F(Gpus, TrainByMuonToTheSameBits) {
  if (8 % ranks() != 0) GTEST_SKIP() << "8 virtual ranks do not divide among " << ranks();
  for (const std::string& model : {kGpt, kLlama}) {
    for (const char* flags : {"--precision bf16", "--precision fp32", "--precision bf16 --moments bf16 --master off"}) {
      const std::string common = model + "--optimizer muon --virtual-ranks 8 " + flags;
      const nlohmann::json one = summary_of(1, common + " --baseline off");
      EXPECT_LT(one.at("test_loss"), 3.9) << flags << ": ln 64 = 4.16 is where it began";
      for (const char* mesh : {" --graph off", " --zero 1"}) {
        EXPECT_EQ(hash_of(common + mesh), one.at("parameter_hash").get<std::string>()) << flags << mesh;
      }
    }
  }
}

/// GPUs update shards of parameters; the bits are those of one.
TEST_F(Gpus, TrainByLambToTheSameBits) {
  if (8 % ranks() != 0) GTEST_SKIP() << "8 virtual ranks do not divide among " << ranks();
  for (const char* flags : {"--precision bf16", "--precision fp32", "--precision bf16 --moments bf16 --master off"}) {
    const std::string common = kGpt + "--optimizer lamb --weight-decay 0.1 --lr 0.02 --virtual-ranks 8 " + flags;
    const nlohmann::json one = summary_of(1, common + " --baseline off");
    EXPECT_LT(one.at("test_loss"), 3.9) << flags << ": ln 64 = 4.16 is where it began";
    for (const char* mesh : {" --graph off", " --zero 1", " --zero 2", " --zero 3"}) {
      EXPECT_EQ(hash_of(common + mesh), one.at("parameter_hash").get<std::string>()) << flags << mesh;
    }
  }
  if (ranks() != 2) return;  // two terms have one sum
  const std::string direct = kGpt + "--optimizer lamb --weight-decay 0.1 --lr 0.02 ";
  EXPECT_EQ(hash_of(direct + "--zero 1"), hash_of(direct)) << "ranks write each other's weights";
}

TEST_F(Gpus, TrainAGptInEveryPrecisionWithAndWithoutShards) {
  for (const std::string precision : {"fp32", "tf32", "bf16", "fp8"}) {
    const bool in_all_stages = precision == "bf16";
    std::string expected;
    for (const int stage : in_all_stages ? std::vector{0, 1, 2, 3} : std::vector{0, 3}) {
      const std::string flags = fmt::format("{} --precision {} --zero {}", kGpt, precision, stage);
      const nlohmann::json summary = summary_of(ranks(), flags + " --baseline off");
      EXPECT_EQ(summary.at("precision"), precision);
      EXPECT_LT(summary.at("test_loss"), 3.9) << flags << ": ln 64 = 4.16 is where it began";
      const std::string hash = summary.at("parameter_hash");
      if (in_all_stages && stage % 2 == 1) {
        EXPECT_EQ(hash_of(flags + " --graph off"), hash) << flags;
      }
      if (expected.empty()) expected = hash;
      if (ranks() > 2) continue;  // two terms have one sum
      EXPECT_EQ(hash, expected) << flags;
    }
  }
}

TEST_F(Gpus, TrainALlamaInEveryPrecisionWithAndWithoutShards) {
  for (const std::string precision : {"fp32", "tf32", "bf16", "fp8"}) {
    std::string expected;
    for (const char* flags : {" --zero 0", " --zero 3", " --zero 1 --graph off", " --recompute block"}) {
      const nlohmann::json summary = summary_of(ranks(), kLlama + "--baseline off --precision " + precision + flags);
      EXPECT_EQ(summary.at("precision"), precision);
      EXPECT_LT(summary.at("test_loss"), 3.9) << precision << flags << ": ln 64 = 4.16 is where it began";
      if (expected.empty()) expected = summary.at("parameter_hash");
      if (ranks() > 2) continue;  // two terms have one sum
      EXPECT_EQ(summary.at("parameter_hash"), expected) << precision << flags;
    }
  }
}

TEST_F(Gpus, EightVirtualRanksEndWithOneHashOnAnyNumberOfRanks) {
  if (8 % ranks() != 0) GTEST_SKIP() << "8 virtual ranks do not divide among " << ranks();
  for (const char* precision : {"bf16", "fp32"}) {
    const std::string arguments = kCnn + "--batch 64 --virtual-ranks 8 --baseline off --precision " + precision;
    const std::string expected = summary_of(1, arguments).at("parameter_hash");
    EXPECT_EQ(summary_of(ranks(), arguments).at("parameter_hash"), expected) << precision;
  }
}

/// ZeRO and pipelines; the first run is of one rank. On 2, 4 and 8 ranks these are 31 meshes.
TEST_F(Gpus, EveryMeshEndsWithOneHash) {
  if (8 % ranks() != 0) GTEST_SKIP() << "8 virtual ranks do not divide among " << ranks();
  const std::string arguments = kGpt +
                                "--layers 4 --batch 2 --steps 100 --clip-norm 0.5 --dropout 0.1 "
                                "--recompute block --virtual-ranks 8 --baseline off --pp ";
  const nlohmann::json one = summary_of(1, arguments + "1");
  for (const char* mesh : {"1", "1 --zero 1", "1 --zero 2", "1 --zero 3", "2", "2 --zero 1", "2 --zero 2",
                           "2 --zero 3 --graph off", "4", "4 --zero 1", "4 --zero 3"}) {
    if (*mesh - '0' > ranks()) continue;
    const nlohmann::json summary = summary_of(ranks(), arguments + mesh);
    EXPECT_EQ(summary.at("parameter_hash"), one.at("parameter_hash")) << mesh;
    EXPECT_EQ(summary.at("test_loss"), one.at("test_loss")) << mesh;
  }
}

/// The same of a Llama, whose output layer has a weight of its own.
TEST_F(Gpus, EveryMeshOfALlamaEndsWithOneHash) {
  if (8 % ranks() != 0) GTEST_SKIP() << "8 virtual ranks do not divide among " << ranks();
  const std::string arguments =
      kLlama +
      "--layers 4 --tied-head off --head-norms on --qkv-bias off --batch 2 --steps 60 "
      "--clip-norm 0.5 --dropout 0.1 --recompute block --virtual-ranks 8 --baseline off --pp ";
  const nlohmann::json one = summary_of(1, arguments + "1");
  for (const char* mesh : {"1", "1 --zero 2", "1 --zero 3", "2", "2 --zero 1", "2 --zero 3 --graph off", "4"}) {
    if (*mesh - '0' > ranks()) continue;
    const nlohmann::json summary = summary_of(ranks(), arguments + mesh);
    EXPECT_EQ(summary.at("parameter_hash"), one.at("parameter_hash")) << mesh;
    EXPECT_EQ(summary.at("test_loss"), one.at("test_loss")) << mesh;
  }
}

TEST_F(Gpus, StagesTrainWithOneMicroStep) {
  if (ranks() < 2) GTEST_SKIP() << "two stages";
  const std::string arguments = kLlama + "--batch 2 --steps 10 --virtual-ranks 1 --baseline off --pp ";
  EXPECT_EQ(summary_of(2, arguments + "2").at("parameter_hash"), summary_of(1, arguments + "1").at("parameter_hash"));
}

/// In the first step hosts wait for their GPUs, and for other hosts when NCCL connects them.
TEST_F(Gpus, StagesTuneWithFewerMicroStepsThanStages) {
  if (ranks() < 4) GTEST_SKIP() << "four stages";
  for (const char* micro_steps : {"1", "2", "3"}) {
    const nlohmann::json summary =
        summary_of(4, kLlama + "--layers 4 --batch 2 --steps 3 --baseline off --tune on --tune-cache off --pp 4 " +
                          "--grad-accum " + micro_steps);
    EXPECT_EQ(summary.at("steps"), 3) << micro_steps;
  }
}

/// Split layers add in another order than whole ones; beside them, no axis changes a bit. In fp32 and bf16, with graphs
/// and without, with copy engines and NCCL's kernels, with dropout and recomputed blocks. A small learning rate, so
/// that rounding does not grow.
TEST_F(Gpus, SplitLayersTrainAsWholeOnesInEveryMesh) {
  if (ranks() == 1 || 8 % ranks() != 0) GTEST_SKIP() << "8 virtual ranks, and at least two parts";
  for (const auto& [model, precision] : std::vector<std::pair<std::string, std::string>>{
           {kGpt, "fp32"}, {kGpt, "bf16"}, {kLlama, "fp32"}, {kLlama, "bf16"}}) {
    const std::string arguments =
        model + "--layers 4 --batch 2 --steps 20 --lr 0.0005 --clip-norm 0.5 --dropout 0.1 --virtual-ranks 8 " +
        "--verify-every 10 --baseline off --precision " + precision + " --tp ";
    const nlohmann::json one = summary_of(1, arguments + "1");
    std::map<char, std::string> hashes;  // by the number of parts
    const std::vector<std::string> meshes =
        precision == "fp32"
            ? std::vector<std::string>{"2", "2 --pp 2 --zero 3", "4"}
            : std::vector<std::string>{
                  "2", "2 --symmetric off",     "2 --graph off", "2 --recompute block --zero 2", "2 --pp 2 --zero 3",
                  "4", "4 --zero 3 --graph off"};
    for (const std::string& mesh : meshes) {
      const bool four = mesh[0] == '4' || mesh.find("--pp 2") != std::string::npos;
      if (four && ranks() < 4) continue;
      const nlohmann::json summary = summary_of(ranks(), arguments + mesh);
      const double loss = one.at("test_loss");
      EXPECT_NEAR(summary.at("test_loss"), loss, (precision == "fp32" ? 1e-5 : 1e-2) * loss) << precision << mesh;
      const std::string hash = summary.at("parameter_hash");
      EXPECT_EQ(hashes.try_emplace(mesh[0], hash).first->second, hash) << precision << mesh;
    }
  }
}

TEST_F(Gpus, ClipAndAccumulateWithShardsInFp8) {
  for (const std::string& model : {kGpt, kLlama}) {
    const std::string flags = model + "--precision fp8 --zero 1 --clip-norm 0.5 --batch 4 --grad-accum 2 ";
    const std::string expected = hash_of(flags);
    EXPECT_EQ(hash_of(flags + "--graph off"), expected);
    EXPECT_EQ(hash_of(flags + "--on-nonfinite skip"), expected);
  }
}

/// A trained model has sharp preferences, so a greedy text is the same in every mesh, on CPUs, and during training.
TEST_F(Gpus, GenerateTheTextOfCpusInEveryMesh) {
  const std::string folder = testing::TempDir() + "ddptrain_gpus_generated";
  for (const std::string& model : {kGpt, kLlama}) {
    std::filesystem::remove_all(folder);
    const std::string text = " --prompt 'The ' --max-tokens 100 --temperature 0 ";
    summary_of(1, model +
                      "--precision fp32 --baseline off --data " DDP_SOURCE_DIR
                      "/CONTRIBUTING.md --vocab 256 --steps 200 --sample-every 200 --save " +
                      folder + text);
    const auto lines = json_lines(metrics_file());
    const auto sample = std::ranges::find(lines, "sample", [](const auto& line) { return line.at("event"); });
    ASSERT_NE(sample, lines.end());
    const std::string kind = model.substr(0, model.find(" --layers"));
    const auto text_of = [&](int ranks, const std::string& flags) {
      const Outcome outcome =
          run_command(fmt::format("timeout 200 {} -np {} {} {} --init {} --generate {}{}", DDP_MPIRUN, ranks,
                                  DDPTRAIN_PROGRAM, kind, folder, text, "--log-level warn " + flags));
      EXPECT_EQ(outcome.exit_code, 0) << flags << outcome.output;
      const std::size_t begin = std::min(outcome.output.find("The "), outcome.output.size());
      return outcome.output.substr(begin, outcome.output.find("\nTexts ") - begin);
    };
    const std::string expected = text_of(1, "--device cpu");
    EXPECT_GT(expected.size(), 100u) << expected;
    EXPECT_EQ(sample->at("text").get<std::string>() + "\n", expected);
    const std::string gpu = std::string("--device cuda --precision fp32") + share_gpu_flag();
    EXPECT_EQ(text_of(1, gpu), expected);
    if (ranks() >= 2) {
      EXPECT_EQ(text_of(2, gpu + " --pp 2"), expected);
      EXPECT_EQ(text_of(2, gpu + " --tp 2"), expected);
    }
    EXPECT_GT(text_of(1, std::string("--device cuda") + share_gpu_flag()).size(), 100u) << "in bf16";
  }
}

/// In bf16, also of a model that is trained in FP8. The second text replays a captured pass, as the first one does.
TEST_F(Gpus, WriteSamplesAndEndWithTheSameParameters) {
  const std::string samples = " --sample-every 20 --max-tokens 30 --temperature 0";
  for (const std::string& model : {kGpt, kLlama}) {
    for (const std::string flags : {"", "--graph off", "--precision fp8"}) {
      const std::string expected = hash_of(model + flags);
      EXPECT_EQ(hash_of(model + flags + samples), expected) << model << flags;
      std::vector<std::int64_t> steps;
      for (const nlohmann::json& line : json_lines(metrics_file())) {
        if (line.at("event") != "sample") continue;
        steps.push_back(line.at("step"));
        EXPECT_EQ(line.at("tokens").size(), 30u) << model << flags;
      }
      EXPECT_EQ(steps, (std::vector<std::int64_t>{20, 40})) << model << flags;
    }
    if (ranks() < 2) continue;
    EXPECT_EQ(hash_of(model + "--zero 3" + samples), hash_of(model + "--zero 3")) << model;
  }
}

TEST_F(Gpus, ARunThatDivergesEndsWithOneMessage) {
  for (const char* flags : {"", "--clip-norm 1 --graph off", "--zero 1", "--on-nonfinite skip"}) {
    const Outcome outcome = run(ranks(), fmt::format("{} --lr 3e38 --baseline off {}", kCnn, flags));
    EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
    EXPECT_EQ(outcome.count("ddptrain: "), 1) << outcome.output;
    EXPECT_TRUE(outcome.says("is NaN or infinite")) << outcome.output;
  }
}

std::map<std::string, std::int64_t> all_memory(const nlohmann::json& description) {
  std::map<std::string, std::int64_t> bytes;
  for (const char* place : {"memory", "host_memory"}) {
    if (!description.contains(place)) continue;
    for (const auto& [purpose, value] : description.at(place).items()) bytes[purpose] += value.get<std::int64_t>();
  }
  return bytes;
}

/// Kernels read and write it there. The table of memory is the same, in two parts.
TEST_F(Gpus, TrainWithTheirStateOnTheHostToTheSameBits) {
  const std::string offload = " --baseline off --offload optimizer";
  for (const char* flags :
       {"", "--precision fp8 --moments bf16 --zero 1", "--moments bf16 --master off --graph off",
        "--optimizer muon --zero 1", "--optimizer lamb --lr 0.02 --zero 3", "--precision fp32 --clip-norm 0.5"}) {
    const nlohmann::json plain = summary_of(ranks(), kGpt + flags + " --baseline off");
    const nlohmann::json on_host = summary_of(ranks(), kGpt + flags + offload);
    EXPECT_EQ(on_host.at("parameter_hash"), plain.at("parameter_hash")) << flags;
    EXPECT_EQ(on_host.at("gradient_path"), plain.at("gradient_path")) << flags;
    const nlohmann::json &before = plain.at("description"), &now = on_host.at("description");
    EXPECT_EQ(all_memory(now), all_memory(before)) << flags;
    EXPECT_FALSE(now.at("memory").contains("masters") || now.at("memory").contains("optimizer")) << flags;
    EXPECT_GT(now.at("host_memory").at("optimizer"), 0) << flags;
  }
  if (ranks() % 2 != 0) return;
  const std::string mesh = kLlama + (ranks() % 4 == 0 ? "--pp 2 --tp 2 --grad-accum 2" : "--pp 2 --grad-accum 2");
  EXPECT_EQ(hash_of(mesh + offload), hash_of(mesh));
}

TEST_F(Gpus, ResumeWithTheirStateElsewhere) {
  const std::string common = kGpt + "--zero 1 --baseline off --verify-every 10 ";
  const std::string folder = testing::TempDir() + "ddptrain_gpus_places";
  std::filesystem::remove_all(folder);
  const auto flags = [&](const char* place, int steps) {
    return fmt::format("{} --steps {} --checkpoint {} --resume auto --offload {}", common, steps, folder, place);
  };
  summary_of(ranks(), flags("optimizer", 10));
  summary_of(ranks(), flags("none", 20));
  const std::string hash = summary_of(ranks(), flags("optimizer", 40)).at("parameter_hash");
  EXPECT_EQ(hash, hash_of(common));
}

/// Blocks of 805 million parameters, whose state takes 9.7 GB. The system would end the run without a message.
TEST_F(Gpus, ARunWhoseStateTheHostCannotHoldIsRefused) {
  const auto layers = static_cast<std::int64_t>(1.2 * static_cast<double>(pinnable_host_memory()) / 9.7e9) + 2;
  const Outcome outcome = run(1, fmt::format("--model gpt --layers {} --width 8192 --heads 64 --ff 32768 --seq 128 "
                                             "--batch 1 --data synthetic:200000:64 --steps 3 --offload optimizer",
                                             layers));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  if (outcome.says("there is too little memory: ")) GTEST_SKIP() << "the GPU is too small for this model";
  EXPECT_EQ(outcome.count("--offload optimizer: there is too little memory on "), 1) << outcome.output;
  for (const char* part : {"\nall ", "\nhost: masters ", "\nhost: optimizer ", "\nhost: all ", "--moments bf16"}) {
    EXPECT_TRUE(outcome.says(part)) << part << outcome.output;
  }
}

/// 258 GB with all that belongs to it; weights and gradients alone (64 GB) fit the share of a rank of 80 GB and more.
TEST_F(Gpus, ARunThatFindsNoMemoryIsRefusedBeforeItTakesAny) {
  const Outcome outcome =
      run(ranks(), fmt::format("--model gpt --layers {} --width 8192 --heads 64 --ff 32768 --seq 128 "
                               "--batch 8 --data synthetic:200000:64 --steps 3",
                               20 / ranks_per_gpu(ranks())));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_EQ(outcome.count("there is too little memory: a rank would keep "), 1) << outcome.output;
  for (const char* part : {" are free on its GPU", "\nweights    ", "\nall        "}) {
    EXPECT_TRUE(outcome.says(part)) << part << outcome.output;
  }
}

/// A model whose activations take terabytes.
TEST_F(Gpus, BatchAutoFitsWhereABatchDoesNot) {
  const std::string flags =
      "--model gpt --layers 12 --width 768 --heads 12 --ff 3072 --seq 1024 --vocab 50257 --data synthetic:20000000 "
      "--baseline off --steps 3 ";
  const Outcome refused = run(1, flags + "--batch 8192");
  ASSERT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_TRUE(refused.says("; --batch auto (the largest that fits)")) << refused.output;
  const Outcome chosen = run(1, flags + "--batch auto");
  EXPECT_EQ(chosen.exit_code, 0) << chosen.output;
  EXPECT_TRUE(chosen.says("--batch auto: ")) << chosen.output;
}

}  // namespace
}  // namespace ddptrain
