#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/process/host.h"
#include "tests/launch/process.h"

namespace ddptrain {
namespace {

const std::string kSmall = "--device cpu --model gpt --width 32 --heads 2 --ff 64 --seq 32 ";
const std::string kTiny = kSmall + "--layers 1 ";

nlohmann::json summary_of(int ranks, const std::string& arguments, const std::string& name) {
  const std::string metrics = temporary(name + ".jsonl");
  const Outcome outcome = train_on_cpu(ranks, arguments + " --baseline off --metrics " + metrics);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  return summary_in(metrics);
}

void expect_same_end(const nlohmann::json& summary, const nlohmann::json& expected, const std::string& what) {
  EXPECT_EQ(summary.at("parameter_hash"), expected.at("parameter_hash")) << what;
  EXPECT_EQ(summary.at("test_loss"), expected.at("test_loss")) << what;
}

/// Tells a run that went on from one that began anew, which ends with the same bits.
void expect_restarted_once(const std::string& metrics, std::int64_t step, const std::string& what) {
  std::vector<std::int64_t> restarts;
  for (const nlohmann::json& line : json_lines(metrics)) {
    if (line.at("event") == "restart") restarts.push_back(line.at("step"));
  }
  EXPECT_EQ(restarts, std::vector{step}) << what;
}

TEST(Gpt, LearnsSyntheticTextDownToItsEntropy) {
  const double entropy = 1.2130;  // 1.75 ln 2, see SyntheticTokens
  const auto summary = summary_of(2,
                                  kTiny +
                                      "--data synthetic:100000:16 --batch 16 --steps 300 --lr 0.01 --schedule "
                                      "cosine --warmup 20 --optimizer adamw --eval-samples 256",
                                  "synthetic");
  EXPECT_NEAR(summary.at("loss"), entropy, 0.02);
  EXPECT_NEAR(summary.at("accuracy"), 0.5, 0.03);  // the likeliest successor comes half of the time
}

const std::string kNarrow = "--moments bf16 --master off ";

/// At this rate most updates are smaller than half of the distance between two bf16 numbers.
TEST(Gpt, WithoutMasterWeightsTheLossIsTheSame) {
  const std::string common = kTiny +
                             "--data synthetic:100000:16 --batch 16 --steps 300 --lr 0.002 --beta2 0.999 --schedule "
                             "cosine --warmup 20 --optimizer adamw --eval-samples 256 ";
  const double expected = summary_of(1, common, "masters").at("test_loss");
  const auto summary = summary_of(1, common + kNarrow, "narrow");
  EXPECT_NEAR(summary.at("test_loss"), expected, 0.01 * expected);
}

/// A GPU keeps 8 bytes of a parameter: bf16 weights, gradients and two moments.
TEST(Gpt, MomentsAndMasterWeightsTakeTheMemoryThatTheyShould) {
  const auto memory_of = [](const std::string& flags) {
    const Outcome outcome = train_on_cpu(1,
                                         "--model gpt --layers 2 --width 128 --heads 2 --ff 512 --seq 32 --data "
                                         "synthetic:20000:64 --batch 2 --optimizer adamw --log-level off --describe " +
                                             flags);
    EXPECT_EQ(outcome.exit_code, 0) << flags << outcome.output;
    const auto description = nlohmann::json::parse(outcome.output);
    std::map<std::string, std::int64_t> bytes;
    for (const auto& [purpose, value] : description.at("memory").items()) bytes[purpose] = value;
    bytes["parameters"] = description.at("parameters");
    return bytes;
  };
  const std::string gpu = "--device cuda --precision bf16 ";
  const auto masters = memory_of(gpu);
  const std::int64_t elements = masters.at("weights") / 2;  // with padding
  EXPECT_EQ(masters.at("masters"), 4 * elements);
  EXPECT_EQ(masters.at("optimizer"), 8 * elements);
  const auto narrow = memory_of(gpu + kNarrow);
  EXPECT_EQ(narrow.at("weights"), 2 * elements);
  EXPECT_EQ(narrow.at("gradients"), 2 * elements);
  EXPECT_EQ(narrow.at("masters"), 0);
  EXPECT_EQ(narrow.at("optimizer"), 4 * elements);
  EXPECT_LT(elements, narrow.at("parameters") * 11 / 10);
  EXPECT_EQ(memory_of(gpu + "--master off").at("optimizer"), 8 * elements);
  EXPECT_EQ(memory_of(gpu + "--moments bf16").at("masters"), 4 * elements);
  EXPECT_EQ(memory_of("--device cpu --moments bf16").at("optimizer"), 4 * elements);
}

const std::string kOnGpus =
    "--model gpt --layers 2 --width 128 --heads 2 --ff 512 --seq 32 --data synthetic:20000:64 --batch 2 "
    "--device cuda --log-level off ";

/// Bytes that are not on the GPU any more are on the host, and the others stay where they are.
TEST(Gpt, OffloadedStateIsCountedAsMemoryOfTheHost) {
  const auto described = [](const std::string& flags) {
    const Outcome outcome = train_on_cpu(1, kOnGpus + "--describe " + flags);
    EXPECT_EQ(outcome.exit_code, 0) << flags << outcome.output;
    return nlohmann::json::parse(outcome.output);
  };
  for (const char* flags : {"--optimizer adamw", "--optimizer sgd --precision fp32", "--moments bf16 --master off",
                            "--optimizer muon --zero 1 --ranks 2", "--optimizer lamb --zero 3 --ranks 2",
                            "--pp 2 --ranks 2", "--tp 2 --ranks 2 --checkpoint c"}) {
    nlohmann::json expected = described(flags), offloaded = described(flags + std::string(" --offload optimizer"));
    for (const char* purpose : {"masters", "optimizer"}) {
      expected["host_memory"][purpose] = expected["memory"][purpose];
      expected["memory"].erase(purpose);
    }
    EXPECT_GT(expected["host_memory"]["optimizer"], 0) << flags;
    EXPECT_EQ(offloaded, expected) << flags;
  }
  EXPECT_FALSE(described("").contains("host_memory"));
  const auto kept = described("--checkpoint c").at("host_memory");
  EXPECT_EQ(kept.size(), 1u) << kept;
  EXPECT_GT(kept.at("checkpoint"), 0);
}

TEST(Gpt, DryRunsSayWhetherTheHostHasTheMemory) {
  const Outcome fits = train_on_cpu(1, kOnGpus + "--offload optimizer --dry-run");
  EXPECT_EQ(fits.exit_code, 0) << fits.output;
  for (const char* part :
       {"\nall ", "\nhost: masters ", "\nhost: optimizer ", "\nhost: all ", "\n1 rank would keep "}) {
    EXPECT_EQ(fits.count(part), 1) << part << fits.output;
  }
  EXPECT_FALSE(fits.says("too little")) << fits.output;
  const auto layers = static_cast<std::int64_t>(1.2 * static_cast<double>(pinnable_host_memory()) / 12.9e9) + 2;
  const Outcome large = train_on_cpu(
      1, fmt::format("{} --width 16384 --heads 128 --layers {} --offload optimizer --dry-run", kOnGpus, layers));
  EXPECT_EQ(large.exit_code, 0) << large.output;
  EXPECT_TRUE(large.says(" are free: too little\n")) << large.output;
  const Outcome elsewhere = train_on_cpu(1, kOnGpus + "--offload optimizer --dry-run --ranks 4");
  EXPECT_TRUE(elsewhere.says("\nhost: all ")) << elsewhere.output;
  EXPECT_FALSE(elsewhere.says("would keep")) << "the hosts of these ranks are not known" << elsewhere.output;
  EXPECT_FALSE(train_on_cpu(1, kOnGpus + "--dry-run").says("host: "));
  for (const char* task : {"", "--describe", "--dry-run"}) {
    const Outcome refused = train_on_cpu(2, kTiny + "--data synthetic:20000:64 --offload optimizer " + task);
    EXPECT_EQ(refused.exit_code, 2) << task << refused.output;
    EXPECT_EQ(refused.count("ddptrain: --offload optimizer: a CPU computes in the memory of the host"), 1)
        << task << refused.output;
  }
}

/// The size behind `label` in a text of --dry-run.
double bytes_behind(const std::string& label, const std::string& text) {
  const std::size_t at = text.find(label);
  if (at == std::string::npos) return 0.0;
  std::istringstream words(text.substr(at + label.size()));
  double number = 0.0;
  std::string unit;
  words >> number >> unit;
  const std::string prefix = unit.substr(0, unit.find('B'));
  return number * (prefix == "k" ? 1e3 : prefix == "M" ? 1e6 : prefix == "G" ? 1e9 : 1.0);
}

TEST(Gpt, DryRunsAddWhatTheRanksOfAHostKeepThere) {
  for (const std::string& flags : {std::string(), "--save " + temporary("saved_by_rank_0"), std::string("--pp 2")}) {
    const std::string text = train_on_cpu(2, kOnGpus + "--offload optimizer --dry-run " + flags).output;
    const double each = bytes_behind("host: all ", text), on_rank_0 = bytes_behind("host: saved model", text);
    const double both = bytes_behind("2 ranks would keep ", text);
    EXPECT_GT(each, 1.1 * on_rank_0) << flags << text;
    if (flags.starts_with("--pp")) {  // the other stage keeps less
      EXPECT_LT(both, 1.99 * each) << text;
      EXPECT_GT(both, 1.01 * each) << text;
    } else {
      EXPECT_NEAR(both, 2 * each - on_rank_0, 0.02 * each) << flags << text;
    }
  }
}

/// Saved, exported and resumed weights are the run's; what is bf16 may become fp32, and not the other way.
TEST(Gpt, WithoutMasterWeightsRunsAreSavedExportedAndResumed) {
  const std::string common =
      kTiny + "--data synthetic:20000:64 --batch 4 --virtual-ranks 2 --optimizer adamw --eval-samples 8 ";
  const std::string saved = temporary("narrow_saved"), exported = temporary("narrow_exported"),
                    kept = temporary("narrow_kept"), wide = temporary("wide_kept");
  for (const std::string& folder : {saved, exported, kept, wide}) std::filesystem::remove_all(folder);
  const auto whole = summary_of(2, common + kNarrow + "--zero 1 --steps 12 --save " + saved, "whole");
  summary_of(2, common + kNarrow + "--zero 3 --steps 6 --checkpoint " + kept, "half");
  const std::string resume = fmt::format("{}--steps 12 --resume {} ", common, kept);
  expect_same_end(summary_of(1, resume + kNarrow + "--checkpoint " + kept, "resumed"), whole, "resumed");
  EXPECT_EQ(train_on_cpu(1, fmt::format("--resume {} --export {}", kept, exported)).exit_code, 0);
  EXPECT_EQ(content_of(exported + "/model.safetensors"), content_of(saved + "/model.safetensors"));

  const Outcome other = train_on_cpu(1, resume);
  EXPECT_EQ(other.exit_code, 2) << other.output;
  EXPECT_TRUE(other.says("--moments \"fp32\" (checkpoint: \"bf16\")")) << other.output;
  EXPECT_TRUE(other.says("--master \"fp32\" (checkpoint: \"off\")")) << other.output;
  summary_of(1, resume + "--steps 14 --allow-change", "widened");
  summary_of(1, common + "--steps 2 --checkpoint " + wide, "wide");
  for (const char* flag : {"--moments bf16", "--master off"}) {
    const Outcome outcome =
        train_on_cpu(1, fmt::format("{}--steps 4 --resume {} --allow-change {}", common, wide, flag));
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_EQ(outcome.count("ddptrain: "), 1) << outcome.output;
    EXPECT_TRUE(outcome.says("are fp32, and would have to be rounded")) << outcome.output;
  }
}

struct Mesh {
  int ranks, stages, zero;
  int tensor = 1;

  std::string flags() const { return fmt::format(" --pp {} --zero {} --tp {}", stages, zero, tensor); }
  std::string text() const { return fmt::format("{} ranks,{}", ranks, flags()); }
};

const std::string kStaged =
    "--device cpu --model gpt --layers 4 --width 32 --heads 2 --ff 64 --seq 16 --data synthetic:20000:64 --batch 2 "
    "--virtual-ranks 8 --clip-norm 0.5 --eval-samples 37 ";

/// Clipping, dropout, recomputation and evaluation included. The data axis, stages of ZeRO, whose blocks take turns in
/// the places of sharded weights, and of the pipeline. VirtualRanksTest has more of the data axis alone, and
/// tests/models/second_family every mesh of four ranks.
TEST(Gpt, EveryMeshEndsWithTheSameBits) {
  const std::string common = kStaged + "--layers 6 --steps 8 --dropout 0.1 --recompute block --bucket-mb 0.02";
  const auto one = summary_of(1, common, "one_rank");
  for (const Mesh& mesh : {Mesh{2, 1, 2}, Mesh{4, 1, 3}, Mesh{2, 2, 0}, Mesh{3, 3, 0}, Mesh{4, 2, 0}, Mesh{4, 2, 2},
                           Mesh{4, 2, 3}, Mesh{8, 2, 3}, Mesh{8, 4, 2}}) {
    const auto summary = summary_of(mesh.ranks, common + mesh.flags(), "mesh");
    expect_same_end(summary, one, mesh.text());
    EXPECT_EQ(summary.at("loss"), one.at("loss")) << mesh.text();
    EXPECT_EQ(summary.at("zero"), mesh.ranks > mesh.stages ? mesh.zero : 0) << mesh.text();
  }
}

/// The matrices are dealt to two or four replicas, or to those of a stage. Grouped heads are interleaved matrices.
TEST(Gpt, MuonEndsWithTheSameBitsInEveryMesh) {
  for (const char* model : {"", "--model llama --key-heads 1 "}) {
    const std::string common = kStaged + model + "--optimizer muon --steps 6 --bucket-mb 0.02";
    const auto one = summary_of(1, common, "one_rank");
    EXPECT_NE(summary_of(1, common + " --optimizer adamw", "adamw").at("parameter_hash"), one.at("parameter_hash"));
    for (const Mesh& mesh : {Mesh{2, 1, 1}, Mesh{4, 1, 0}, Mesh{4, 2, 1}}) {
      expect_same_end(summary_of(mesh.ranks, common + mesh.flags(), "mesh"), one, model + mesh.text());
    }
  }
}

/// Two or four ranks update shards of parameters; a stage has its parameters alone.
TEST(Gpt, LambEndsWithTheSameBitsInEveryMesh) {
  const std::string common = kStaged + "--width 64 --optimizer lamb --weight-decay 0.1 --steps 4 --bucket-mb 0.02";
  const auto one = summary_of(1, common, "one_rank");
  EXPECT_NE(summary_of(1, common + " --optimizer adamw", "adamw").at("parameter_hash"), one.at("parameter_hash"));
  for (const Mesh& mesh : {Mesh{2, 1, 1}, Mesh{4, 1, 3}, Mesh{2, 2, 0}, Mesh{4, 2, 2}}) {
    expect_same_end(summary_of(mesh.ranks, common + mesh.flags(), "mesh"), one, mesh.text());
  }
}

/// Two numbers for each chunk of 2048 elements, and one for each parameter.
TEST(Gpt, LambIsDescribed) {
  const auto memory_of = [](const std::string& flags) {
    const Outcome outcome =
        train_on_cpu(1, kTiny + "--data synthetic:20000:64 --ranks 2 --describe --log-level off " + flags);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return nlohmann::json::parse(outcome.output).at("memory");
  };
  const nlohmann::json plain = memory_of("--optimizer adamw");
  EXPECT_FALSE(plain.contains("trust ratios"));
  for (const char* zero : {"0", "3"}) {
    const nlohmann::json lamb = memory_of(fmt::format("--optimizer lamb --zero {}", zero));
    EXPECT_EQ(lamb.at("trust ratios"), 17 * 8 + 16 * 4) << zero;
  }
}

/// A rank sends directions of all matrices once, and with --zero 1 also the gradients of their buckets. The workspace
/// has twice the largest matrix and twice its smaller product.
TEST(Gpt, MuonIsDescribed) {
  const auto description_of = [](const std::string& flags) {
    const Outcome outcome = train_on_cpu(1, kStaged + "--ranks 2 --describe --log-level off " + flags);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return nlohmann::json::parse(outcome.output);
  };
  const auto sent = [](const nlohmann::json& description) {
    std::int64_t bytes = 0;
    for (const auto& sends : description.at("sends")) {
      if (sends.at("axis") == "directions") bytes += sends.at("bytes").get<std::int64_t>();
    }
    return bytes;
  };
  const std::int64_t matrices = 4 * (4 * 32 * 32 + 2 * 32 * 64);  // elements of the four blocks
  const nlohmann::json plain = description_of("--optimizer adamw"), muon = description_of("--optimizer muon"),
                       sharded = description_of("--optimizer muon --zero 1");
  EXPECT_EQ(sent(plain), 0);
  EXPECT_FALSE(plain.at("memory").contains("directions"));
  EXPECT_EQ(sent(muon), matrices * 4 / 2);
  EXPECT_GT(sent(sharded), 2 * matrices * 4 / 2);
  EXPECT_EQ(muon.at("memory").at("directions"), 4 * 2 * (32 * 64 + 32 * 32));
  EXPECT_EQ(muon.at("memory").at("optimizer"), plain.at("memory").at("optimizer"));
}

/// Without dropout a norm gives the bias gradient of the stage before; micro-steps add to it.
TEST(Gpt, StagesAddTheGradientsOfMicroStepsAsOneRankDoes) {
  const std::string common = kSmall + "--layers 3 --data synthetic:20000:64 --batch 2 --steps 6 --grad-accum 5 ";
  const auto one = summary_of(1, common, "one_rank");
  const auto clipped = summary_of(1, common + "--clip-norm 0.1 --bucket-mb 0.02", "clipped_rank");
  EXPECT_NE(clipped.at("parameter_hash"), one.at("parameter_hash"));
  for (const char* stages : {"2", "3"}) {
    const auto summary = summary_of(std::stoi(stages), common + "--pp " + stages, "stages");
    expect_same_end(summary, one, stages);
    EXPECT_EQ(summary.at("loss"), one.at("loss")) << stages;
    EXPECT_EQ(summary.at("gradient_path_reason"), "one replica") << stages;
    expect_same_end(
        summary_of(std::stoi(stages), common + "--clip-norm 0.1 --bucket-mb 0.02 --pp " + stages, "clipped"), clipped,
        stages);
  }
}

/// The loss of every step; the last one is the loss of the test samples.
std::vector<double> losses_of(int ranks, const std::string& arguments) {
  const std::string metrics = temporary("losses.jsonl");
  std::filesystem::remove(metrics);
  const auto summary = summary_of(ranks, arguments + " --log-every 1", "losses");
  std::vector<double> losses;
  for (const nlohmann::json& line : json_lines(metrics)) {
    if (line.at("event") == "step") losses.push_back(line.at("loss"));
  }
  losses.push_back(summary.at("test_loss"));
  return losses;
}

/// Within the rounding of fp32: split layers add in another order.
void expect_same_losses(const std::vector<double>& found, const std::vector<double>& expected,
                        const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 5e-6 * expected[i]) << what << ", place " << i;
  }
}

const std::string kSplit =
    "--device cpu --model gpt --layers 2 --width 32 --heads 4 --ff 64 --seq 16 --data synthetic:20000:61 "
    "--optimizer adamw --lr 0.003 --eval-samples 37 ";

/// Alone and beside the other axes; the parts of the vocabulary are not of one size. With virtual ranks, the bits do
/// not depend on the axes beside the split.
TEST(Gpt, SplitLayersTrainAsWholeOnes) {
  const std::string all = kSplit + "--steps 30 --clip-norm 0.5 --dropout 0.1 --recompute block --batch 2 ";
  const std::string virtual_ranks = all + "--virtual-ranks 4";
  const auto whole = losses_of(1, virtual_ranks);
  std::map<int, std::string> hashes;
  for (const Mesh& mesh : {Mesh{2, 1, 0, 2}, Mesh{4, 1, 0, 4}, Mesh{4, 2, 0, 2}, Mesh{4, 1, 1, 2}, Mesh{4, 1, 2, 2},
                           Mesh{4, 1, 3, 2}, Mesh{8, 2, 3, 2}, Mesh{8, 1, 3, 4}}) {
    expect_same_losses(losses_of(mesh.ranks, virtual_ranks + mesh.flags()), whole, mesh.text());
    const std::string hash = summary_in(temporary("losses.jsonl")).at("parameter_hash");
    EXPECT_EQ(hashes.try_emplace(mesh.tensor, hash).first->second, hash) << mesh.text();
  }
  const std::string accumulated = all + "--grad-accum 3 --verify-every 10";
  const auto expected = losses_of(1, accumulated);
  for (const Mesh& mesh : {Mesh{2, 1, 0, 2}, Mesh{4, 2, 0, 2}}) {
    expect_same_losses(losses_of(mesh.ranks, accumulated + mesh.flags()), expected, mesh.text());
  }
}

TEST(Gpt, ShardedGradientsOfSeveralPassesHaveABaseline) {
  const std::string common = kSmall + "--layers 6 --data synthetic:20000:64 --batch 8 --steps 6 --eval-samples 8 ";
  for (const char* flags : {"--zero 2 --grad-accum 2", "--zero 3 --virtual-ranks 4"}) {
    const Outcome outcome = train_on_cpu(2, common + "--calibration-seconds 1 " + flags);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_TRUE(outcome.says("\nScaling  ")) << outcome.output;
  }
}

TEST(Gpt, SplitLayersGoOnFromTheCheckpointOfAnyMesh) {
  const std::string folder = temporary("split");
  const std::string common = kSplit + "--batch 2 --virtual-ranks 4 --clip-norm 0.5 --checkpoint " + folder;
  const Mesh meshes[] = {{2, 1, 0, 2}, {1, 1, 0}, {4, 1, 3, 2}, {4, 2, 0, 2}, {2, 2, 0}, {4, 1, 0, 4}};
  const auto whole = losses_of(1, kSplit + "--batch 2 --virtual-ranks 4 --clip-norm 0.5 --steps 20");
  for (std::size_t i = 0; i < std::size(meshes); ++i) {
    const Mesh& saves = meshes[i];
    const Mesh& resumes = meshes[(i + 1) % std::size(meshes)];
    const std::string text = saves.text() + "; " + resumes.text();
    std::filesystem::remove_all(folder);
    summary_of(saves.ranks, common + " --steps 10" + saves.flags(), "saving");
    const auto losses = losses_of(resumes.ranks, common + " --steps 20 --resume auto" + resumes.flags());
    const std::size_t behind = whole.size() - 11;  // of the steps behind the checkpoint, and of the end
    ASSERT_EQ(losses.size(), 12u) << text;         // those, and that of the checkpoint's step
    expect_same_losses({losses.begin() + 1, losses.end()},
                       {whole.begin() + static_cast<std::ptrdiff_t>(behind), whole.end()}, text);
    expect_restarted_once(temporary("losses.jsonl"), 10, text);
  }
}

TEST(Gpt, SplitLayersGoOnWithTheSameBitsInTheSameMesh) {
  const std::string folder = temporary("same");
  const std::string common = kSplit + "--batch 2 --dropout 0.1 --pp 2 --tp 2 --zero 3 --log-every 5 ";
  const auto whole = summary_of(8, common + "--steps 10", "whole");
  std::filesystem::remove_all(folder);
  std::filesystem::remove(temporary("resumed.jsonl"));
  summary_of(8, common + "--steps 5 --checkpoint " + folder, "saving");
  const auto resumed = summary_of(8, common + "--steps 10 --resume auto --checkpoint " + folder, "resumed");
  expect_same_end(resumed, whole, "resumed");
  EXPECT_EQ(resumed.at("loss"), whole.at("loss")) << "of an epoch with steps before and after the resume";
  EXPECT_EQ(resumed.at("accuracy_per_epoch"), whole.at("accuracy_per_epoch"));
  expect_restarted_once(temporary("resumed.jsonl"), 5, "resumed");
}

TEST(Gpt, EveryMeshGoesOnFromTheCheckpointOfAnother) {
  const std::string folder = temporary("checkpoints");
  const std::string common = kStaged + "--log-every 5 --checkpoint-every 10 --checkpoint " + folder;
  const Mesh meshes[] = {{1, 1, 0}, {2, 1, 3}, {2, 2, 0}, {4, 2, 2}, {4, 4, 1}};
  const auto whole = summary_of(1, kStaged + "--log-every 5 --steps 20", "whole");
  for (std::size_t i = 0; i < std::size(meshes); ++i) {
    const Mesh& saves = meshes[i];
    const Mesh& resumes = meshes[(i + 1 + i % 3) % std::size(meshes)];
    std::filesystem::remove_all(folder);
    std::filesystem::remove(temporary("resumed.jsonl"));
    summary_of(saves.ranks, common + " --steps 10" + saves.flags(), "saving");
    const auto summary = summary_of(resumes.ranks, common + " --steps 20 --resume auto" + resumes.flags(), "resumed");
    const std::string text = saves.text() + "; " + resumes.text();
    expect_same_end(summary, whole, text);
    expect_restarted_once(temporary("resumed.jsonl"), 10, text);
  }
}

/// options_test.cpp has what is refused before anything is read.
TEST(Gpt, WhatCannotBeIsRefusedInOneMessageBeforeTraining) {
  const std::string data = "--data synthetic:20000:64 --batch 2 --steps 3 ";
  const std::string flags = kSmall + data + "--layers ";
  const std::string file = temporary("a_file");
  std::ofstream(file) << "kept";
  for (const auto& [refused, part] :
       {std::pair{kTiny, std::string("--data")},
        {kTiny + "--data /nonexistent.txt", "/nonexistent.txt"},
        {kTiny + "--data synthetic:20:64", "window"},
        {kTiny + data + "--init /nonexistent", "/nonexistent"},
        {kTiny + data + "--save " + file, "--save " + file},
        {kTiny + data + "--save " + file + "/within", "--save " + file + "/within"},
        {kTiny + data + "--save /proc/model", "--save /proc/model"},
        {flags + "1 --zero 2 --virtual-ranks 2 --grad-accum 2", "--virtual-ranks"},
        {flags + "3 --pp 3", "--pp 3 --tp 1 on 2 ranks"},
        {flags + "1 --pp 2", "the model has 1 block, and a stage has one at least. Give --pp 1."},
        {flags + "3 --tp 3", "--pp 1 --tp 3 on 2 ranks"},
        {flags + "3 --tp 2 --pp 2", "--pp 2 --tp 2 on 2 ranks"},
        {flags + "3 --heads 1 --tp 2", "does not divide --heads 1"},
        {flags + "3 --ff 65 --tp 2", "does not divide --ff 65"},
        {flags + "3 --seq 15 --tp 2", "does not divide --seq 15"},
        {flags + "3 --batch 3 --dropout 0.1 --tp 2", "--dropout with --tp 2"},
        {kTiny + "--data synthetic:20000:16 --batch 2 --steps 3 --tp 2", "no token left"}}) {
    const bool is_about_meshes = says(refused, "--pp") || says(refused, "--tp");  // one rank starts faster
    const Outcome outcome = train_on_cpu(is_about_meshes ? 2 : 1, refused);
    EXPECT_EQ(outcome.exit_code, 2) << refused << outcome.output;
    EXPECT_EQ(outcome.count("ddptrain: "), 1) << refused << outcome.output;
    EXPECT_TRUE(outcome.says(part)) << refused << outcome.output;
    EXPECT_FALSE(outcome.says("Epoch")) << refused << outcome.output;
  }
}

/// They differ, as they should: nothing is at fault. What they would write is a mixture.
TEST(Gpt, ReplicasThatTrainOnTheirOwnAreNotCompared) {
  const std::string common = kSmall +
                             "--layers 2 --data synthetic:20000:300 --batch 2 --steps 4 --eval-samples 8 "
                             "--overlap none --verify-every 1 ";
  for (const char* mesh : {"--tp 2", "--tp 2 --zero 1", "--pp 2", "--tp 2 --pp 2", "--zero 1", "--virtual-ranks 4"}) {
    summary_of(4, common + mesh, "own");
  }
  for (const char* output : {"--checkpoint", "--save"}) {
    const Outcome outcome = train_on_cpu(2, fmt::format("{} {} {}", common, output, temporary("mixed")));
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_TRUE(outcome.says(std::string("--overlap none with ") + output)) << outcome.output;
  }
}

/// The messages of one byte in a flight record, after `step` steps.
std::int64_t short_broadcasts_in(const std::string& record, std::int64_t step) {
  return std::ranges::count_if(json_lines(record), [&](const nlohmann::json& line) {
    return line.at("event") == "collective" && line.at("name") == "broadcast" && line.at("bytes") == 1 &&
           line.at("step") == step;
  });
}

/// While the first replica writes a sample, the other hears of it with each token: a long text is no hang.
TEST(Gpt, ARankThatHangsIsMissedWhereOthersWaitForIt) {
  const std::string flight = temporary("flight");
  std::filesystem::remove_all(flight);
  const std::string sampled = "--layers 1 --zero 3 --sample-every 3 --max-tokens 20 --flight " + flight;
  for (const auto& [mesh, waits_in, place] : {std::tuple{std::string("--layers 2 --pp 2"), "exchange", ", stage 1"},
                                              {sampled, "all-gather", ""},
                                              {"--layers 1 --tp 2", "reduce-scatter", ", part 1"}}) {
    const Outcome outcome = train_on_cpu(
        2, kSmall + mesh + " --data synthetic:20000:64 --batch 2 --steps 30 --hang-at 1:5 --timeout 3s --baseline off");
    if (mesh == sampled) {
      EXPECT_EQ(outcome.count("step 3  sample: "), 1) << outcome.output;
      EXPECT_EQ(short_broadcasts_in(flight + "/rank0.jsonl", 3), 21) << "20 tokens, and the end";
    }
    EXPECT_EQ(outcome.exit_code, 76) << mesh << outcome.output;
    const bool between_pieces = outcome.says("has been waiting in reduction");  // on a busy machine
    EXPECT_TRUE(between_pieces || outcome.says(std::string("has been waiting in ") + waits_in))
        << mesh << outcome.output;
    EXPECT_TRUE(outcome.says("Missing: rank 1 (")) << mesh << outcome.output;
    EXPECT_TRUE(outcome.says(std::string(place) + ") has not entered a collective for")) << mesh << outcome.output;
    const std::string in_table = *place == 0 ? "  local  host  " : fmt::format("      1  {}  ", place + 2);
    EXPECT_TRUE(outcome.says(in_table)) << mesh << outcome.output;
  }
}

TEST(Gpt, ARunThatDivergesEndsWithExitCode1AndSavesNothing) {
  const std::string folder = temporary("diverged");
  const std::string metrics = temporary("diverged.jsonl");
  std::filesystem::remove_all(folder);
  for (const char* flags : {"", "--on-nonfinite skip"}) {  // nonfinite_test.cpp has clipping and ZeRO
    const Outcome outcome =
        train_on_cpu(2, fmt::format("{} --data synthetic:20000:64 --batch 8 --steps 30 --lr 1e30 --log-every 10 --save "
                                    "{} --metrics {} {}",
                                    kTiny, folder, metrics, flags));
    EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
    EXPECT_EQ(outcome.count("ddptrain: "), 1) << outcome.output;
    EXPECT_TRUE(outcome.says("is NaN or infinite")) << outcome.output;
    EXPECT_TRUE(outcome.says("its parameters are not saved")) << outcome.output;
    EXPECT_FALSE(std::filesystem::exists(folder + "/model.safetensors")) << flags;
    for (const nlohmann::json& line : json_lines(metrics)) EXPECT_NE(line.at("event"), "summary") << flags;
  }
}

/// No training loss follows the last update before an evaluation.
TEST(Gpt, AnUpdateThatDivergesEndsTheRunAfterItsEvaluationAndSavesNothing) {
  const std::string folder = temporary("diverged_at_the_end");
  const std::string metrics = temporary("diverged_at_the_end.jsonl");
  std::filesystem::remove_all(folder);
  for (const auto& [flags, line, event] : {std::tuple{"--steps 1", "Epoch 1/1\n", "epoch"},
                                           {"--steps 2 --eval-every 1", "step 1  test loss ", "evaluation"}}) {
    const Outcome outcome = train_on_cpu(2, fmt::format("{} --data synthetic:20000:64 --batch 8 --optimizer sgd --lr "
                                                        "1e30 --log-every off --save {} --metrics {} {}",
                                                        kTiny, folder, metrics, flags));
    EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
    EXPECT_EQ(outcome.count(line), 1) << outcome.output;
    EXPECT_EQ(outcome.count("ddptrain: after step 1 the validation loss is NaN or infinite."), 1) << outcome.output;
    EXPECT_FALSE(std::filesystem::exists(folder + "/model.safetensors"));
    const nlohmann::json last = json_lines(metrics).back();
    EXPECT_EQ(last.at("event"), event);
    EXPECT_TRUE(last.at("test_loss").is_null());
  }
}

/// The limit is of one process, and not of what the host has: it is met when memory is taken.
TEST(Gpt, OutOfMemorySaysWhatWasAskedForAndWhatHelps) {
  const std::string large =
      "--device cpu --model gpt --layers 6 --width 2048 --heads 16 --ff 8192 --seq 2 --data synthetic:2000:64 "
      "--batch 2 --steps 3 ";
  const Outcome sharded = train_on_cpu(2, large + "--zero 2 --virtual-ranks 4", "ulimit -v 1600000;");
  EXPECT_TRUE(sharded.says("a smaller --batch and a larger --virtual-ranks")) << sharded.output;
  EXPECT_TRUE(sharded.says("--zero 3 (")) << sharded.output;
  for (const char* flags : {"--zero 1 --overlap off", "--zero 1 --virtual-ranks 4 --grad-accum 2", "--tp 2",
                            "--precision fp32 --comm-dtype bf16"}) {
    const Outcome whole = train_on_cpu(2, large + flags, "ulimit -v 1600000;");
    EXPECT_TRUE(whole.says("Less memory is needed with")) << whole.output;
    EXPECT_FALSE(whole.says("--zero 1 (") || whole.says("--zero 2 (")) << flags << whole.output;
  }
  const Outcome outcome = train_on_cpu(2, large, "ulimit -v 2200000;");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  EXPECT_GE(outcome.count("ddptrain: error on rank "), 1) << outcome.output;
  EXPECT_TRUE(outcome.says("the host has no 1.21 GB of memory left")) << outcome.output;
  for (const char* flags : {"a smaller --batch and a larger --grad-accum",
                            "--recompute gelu; --recompute selective; --recompute block", "--zero 1 ("}) {
    EXPECT_TRUE(outcome.says(flags)) << flags << outcome.output;
  }
}

}  // namespace
}  // namespace ddptrain
