#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include "models/registry.h"
#include "runtime/core/files/json.h"
#include "tests/data/idx_files.h"
#include "tests/launch/process.h"

namespace ddptrain {
namespace {

using tests::Bytes;
namespace fs = std::filesystem;

/// Models of images.
std::vector<std::string> classifiers() {
  std::vector<std::string> models = model_names();
  std::erase(models, "gpt");
  std::erase(models, "llama");
  return models;
}

class UseModel : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  Outcome run(int ranks, const std::string& arguments) {
    const Outcome outcome = train_on_cpu(ranks, "--device cpu --baseline off " + arguments);
    EXPECT_EQ(outcome.exit_code, 0) << arguments << '\n' << outcome.output;
    return outcome;
  }
  std::string gpt() const { return "--model gpt --layers 1 --width 32 --heads 2 --ff 32 --seq 16 "; }
  /// With weights in "gpt"; its text has all bytes but 0.
  void train_gpt() {
    std::ofstream text(path("text"), std::ios::binary);
    for (int i = 0; i < 4000; ++i) text << static_cast<char>(1 + i * 7 % 255);
    text.close();
    run(1, gpt() + fmt::format("--data {} --batch 8 --steps 6 --save {} --metrics {}", path("text"), path("gpt"),
                               path("gpt.jsonl")));
  }

  tests::TempFolder folder_;
};

TEST_F(UseModel, ASavedClassifierIsEvaluatedAsTheTrainedOneWas) {
  for (const std::string& model : classifiers()) {
    const std::string flags = "--model " + model + " --data synthetic:600 --batch 30 ";
    const std::string metrics = path(model + ".jsonl"), saved = path(model);
    run(1, flags + "--steps 8 --lr 0.02 --save " + saved + " --metrics " + metrics);
    const auto trained = summary_in(metrics);
    for (const int ranks : {1, 2}) {
      const Outcome outcome = run(ranks, flags + "--evaluate --init " + saved + " --metrics " + metrics);
      EXPECT_TRUE(outcome.says("60 test images\nloss ")) << outcome.output;
      const auto lines = json_lines(metrics);  // those of training are still there
      const auto& evaluated = lines.back();
      EXPECT_EQ(lines.front().at("event"), "start");
      EXPECT_EQ(evaluated.at("event"), "evaluated");
      EXPECT_EQ(evaluated.at("images"), 60);
      EXPECT_EQ(evaluated.at("accuracy"), trained.at("accuracy"));
      EXPECT_NEAR(evaluated.at("test_loss").get<double>(), trained.at("test_loss").get<double>(), 1e-6);
      EXPECT_EQ(evaluated.at("parameter_hash"), trained.at("parameter_hash"));
    }
  }
}

TEST_F(UseModel, TrainingGoesOnFromSavedWeights) {
  const std::string flags = "--model cnn --data synthetic:300 --batch 30 --dropout off --steps 1 --metrics " +
                            path("m.jsonl") + " --lr 1e-30 ";
  run(1, flags + "--seed 5 --save " + path("a"));
  const auto first = summary_in(path("m.jsonl"));
  run(1, flags + "--seed 6 --init " + path("a"));
  EXPECT_EQ(summary_in(path("m.jsonl")).at("parameter_hash"), first.at("parameter_hash"));
}

TEST_F(UseModel, AnExportedCheckpointIsEvaluatedToo) {
  const std::string flags = "--model cnn --data synthetic:300 --batch 30 ";
  run(1, flags + "--steps 2 --checkpoint " + path("c") + " --metrics " + path("m.jsonl"));
  run(1, "--resume " + path("c") + " --export " + path("e"));
  run(1, flags + "--evaluate --init " + path("e") + " --metrics " + path("m.jsonl"));
  const auto lines = json_lines(path("m.jsonl"));
  EXPECT_EQ(lines.back().at("parameter_hash"), lines.at(lines.size() - 2).at("parameter_hash"));
}

TEST_F(UseModel, ASavedGptIsEvaluatedAsTheTrainedOneWas) {
  train_gpt();
  const auto trained = summary_in(path("gpt.jsonl"));
  const Outcome outcome = run(2, gpt() + fmt::format("--data {} --batch 8 --evaluate --init {} --metrics {}",
                                                     path("text"), path("gpt"), path("gpt.jsonl")));
  EXPECT_TRUE(outcome.says("  perplexity ")) << outcome.output;
  const auto evaluated = summary_in(path("gpt.jsonl"));
  EXPECT_EQ(evaluated.at("event"), "evaluated");
  EXPECT_EQ(evaluated.at("accuracy"), trained.at("accuracy"));
  EXPECT_NEAR(evaluated.at("test_loss").get<double>(), trained.at("test_loss").get<double>(), 1e-6);
  EXPECT_NEAR(evaluated.at("perplexity").get<double>(), std::exp(evaluated.at("test_loss").get<double>()), 1e-9);
}

TEST_F(UseModel, BytesAreNoTokensOfASavedGptWithATokenizer) {
  run(1, gpt() + "--data synthetic:4000:300 --batch 8 --steps 1 --save " + path("gpt"));
  std::ofstream(path("text")) << std::string(4000, 'a');
  const std::string init = gpt() + "--batch 8 --steps 1 --init " + path("gpt") + " --data ";
  run(1, init + path("text"));  // a model of bytes may have a larger vocabulary
  std::ofstream(path("gpt/vocab.json")) << "{}";
  const Outcome refused = train_on_cpu(2, "--device cpu --baseline off " + init + path("text"));
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_EQ(refused.count("has other ones. `data/tokens-from-text TEXT OUT.bin"), 1) << refused.output;
  for (const char* data : {"synthetic:4000:300", "synthetic:4000:64"}) run(1, init + data);
  const std::string llama = "--model llama --layers 1 --width 32 --heads 2 --ff 32 --seq 16 --batch 8 --steps 1 ";
  run(1, llama + "--data synthetic:4000:300 --save " + path("llama"));
  const std::string llama_init = llama + "--init " + path("llama") + " --data " + path("text");
  run(1, llama_init);
  auto config = nlohmann::json::parse(tests::read_all(folder_ / "llama/config.json"));
  config["eos_token_id"] = 299;
  std::ofstream(path("llama/config.json")) << config.dump();
  const Outcome named = train_on_cpu(1, "--device cpu --baseline off " + llama_init);
  EXPECT_EQ(named.exit_code, 2) << named.output;
  EXPECT_TRUE(named.says("has other ones. `data/tokens-from-text TEXT OUT.bin")) << named.output;
}

/// The lines of token ids.
std::vector<std::string> texts_of(const Outcome& outcome) {
  std::istringstream output(outcome.output);
  std::vector<std::string> texts;
  for (std::string line; std::getline(output, line);) {
    if (!line.empty() && line.find_first_not_of("0123456789 ") == std::string::npos) texts.push_back(line);
  }
  return texts;
}

TEST_F(UseModel, ACheckpointKeepsTheEndOfTexts) {
  const std::string model = "--model llama ";
  const std::string sizes = "--layers 1 --width 32 --heads 2 --ff 32 --seq 16 ";
  const std::string data = "--data synthetic:4000:300 --batch 8 ";
  std::ofstream(path("prompts")) << "1 2 3\n";
  run(1, model + sizes + data + "--steps 20 --lr 0.01 --optimizer adamw --save " + path("base"));
  const std::string generate = model + "--generate --temperature 0 --prompts " + path("prompts");
  const std::string whole = texts_of(run(1, generate + " --init " + path("base"))).front();
  auto config = nlohmann::json::parse(tests::read_all(folder_ / "base/config.json"));
  config["eos_token_id"] = std::stoi(whole.substr(whole.find(' ')));  // the second token of the text
  config["bos_token_id"] = 299;
  std::ofstream(path("base/config.json")) << config.dump(2) << '\n';
  std::ofstream(path("base/tokenizer.json")) << "{}";
  const std::string first = data + "--seq 16 --steps 1 --lr 1e-30 --checkpoint " + path("c");
  run(2, model + first + " --init " + path("base") + " --save " + path("saved"));
  const std::vector<std::string> ended = texts_of(run(1, generate + " --init " + path("base")));
  EXPECT_LT(ended.front().size(), whole.size());
  const std::string resume = " --resume " + path("c");
  EXPECT_EQ(texts_of(run(1, generate + resume)), ended);
  run(1, resume + " --export " + path("exported"));
  run(2, model + sizes + data + "--steps 2 --lr 1e-30 --allow-change --checkpoint " + path("c2") + resume + " --save " +
             path("resumed"));
  run(1, "--resume " + path("c2") + " --export " + path("again"));
  for (const char* folder : {"saved", "exported", "resumed", "again"}) {
    const auto kept = nlohmann::json::parse(tests::read_all(folder_ / folder / "config.json"));
    for (const char* name : {"bos_token_id", "eos_token_id"}) EXPECT_EQ(kept.at(name), config.at(name)) << folder;
  }
  EXPECT_TRUE(fs::exists(folder_ / "saved/tokenizer.json"));
}

/// Language models with stages and slices.
std::vector<std::string> language_models() {
  return {
      "--model gpt --layers 2 --width 32 --heads 4 --ff 32 --seq 16 ",
      "--model llama --layers 2 --width 32 --heads 4 --key-heads 2 --ff 48 --seq 16 --head-norms on --tied-head off "
      "--rope-scaling 8:1:4:16 --norm-epsilon 1e-6 "};
}

TEST_F(UseModel, EveryMeshSavesAndExportsTheWholeModel) {
  for (const std::string& model : language_models()) {
    run(1, model + "--data synthetic:4000:64 --batch 4 --steps 1 --save " + path("first"));
    const std::string again = model + "--data synthetic:4000:64 --batch 4 --steps 1 --lr 1e-30 --init " + path("first");
    run(4, again + " --pp 2 --tp 2 --save " + path("stages") + " --checkpoint " + path("checkpoint"));
    run(4, again + " --tp 2 --zero 3 --save " + path("slices"));
    run(1, "--resume " + path("checkpoint") + " --export " + path("exported"));
    for (const char* folder : {"stages", "slices", "exported"}) {
      for (const char* file : {"config.json", "model.safetensors"}) {
        EXPECT_EQ(tests::read_all(folder_ / folder / file), tests::read_all(folder_ / "first" / file))
            << model << folder << file;
      }
    }
    for (const char* folder : {"first", "stages", "slices", "exported", "checkpoint"}) fs::remove_all(folder_ / folder);
  }
}

TEST_F(UseModel, EveryMeshGeneratesTheSameText) {
  std::ofstream(path("prompts")) << "1 2,3\n\n63\t5\n7 7 7 7 7\n";
  for (const std::string& model : language_models()) {
    const std::string train = model + "--data synthetic:4000:64 --batch 4 --steps 30 --lr 0.01 --optimizer adamw ";
    run(2, train + "--pp 2 --save " + path("saved") + " --checkpoint " + path("checkpoint"));
    const std::string generate = model.substr(0, model.find("--layers")) + "--generate --prompts " + path("prompts") +
                                 " --max-tokens 10 --metrics " + path("m.jsonl");
    const std::string saved = " --init " + path("saved");
    const std::string checkpoint = " --resume " + path("checkpoint");
    for (const char* sampling : {" --temperature 0", " --temperature 0.7 --top-k 20 --top-p 0.9 --seed 3"}) {
      const Outcome one = run(1, generate + sampling + saved);
      const std::vector<std::string> expected = texts_of(one);
      EXPECT_EQ(expected.size(), 3u) << one.output;
      EXPECT_TRUE(one.says("\nTexts    3 prompts: 10 tokens of prompts, 30 tokens generated in ")) << one.output;
      EXPECT_TRUE(one.says("\nPrefill  ") && one.says("\nDecode   ")) << one.output;
      const auto line = summary_in(path("m.jsonl"));
      EXPECT_EQ(line.at("event"), "generated");
      EXPECT_EQ(line.at("generated_tokens"), 30);
      EXPECT_EQ(texts_of(run(2, generate + sampling + checkpoint + " --tp 2")), expected);
      EXPECT_EQ(texts_of(run(4, generate + sampling + checkpoint + " --pp 2 --tp 2")), expected);
      const Outcome replicas = run(4, generate + sampling + saved + " --pp 2");
      EXPECT_EQ(texts_of(replicas), expected);
      EXPECT_TRUE(replicas.says("\nIn all   ") && replicas.says(" from 2 replicas")) << replicas.output;
    }
    for (const char* folder : {"saved", "checkpoint"}) fs::remove_all(folder_ / folder);
  }
}

TEST_F(UseModel, TextsFillTheModelWithoutMaxTokens) {
  std::ofstream(path("prompts")) << "1 2 3\n4\n";
  std::ofstream(path("full")) << "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n";
  run(1, gpt() + "--data synthetic:4000:64 --batch 8 --steps 1 --save " + path("saved"));
  const std::string generate = "--model gpt --generate --init " + path("saved") + " --prompts ";
  for (const char* max_tokens : {"", " --max-tokens auto"}) {  // 16 positions, and 3 tokens in the longest prompt
    const Outcome outcome = run(1, generate + path("prompts") + max_tokens);
    EXPECT_TRUE(outcome.says("4 tokens of prompts, 26 tokens generated")) << outcome.output;
  }
  run(1, generate + path("prompts") + " --seq 16 --layers 1 --zero 0 --virtual-ranks 0 --sample-every 0");
  const Outcome full = train_on_cpu(1, "--device cpu " + generate + path("full"));
  EXPECT_EQ(full.exit_code, 2) << full.output;
  EXPECT_TRUE(full.says("have 17 tokens together, and the model has 16 positions")) << full.output;
}

TEST_F(UseModel, WhatCannotBeGeneratedIsRefused) {
  run(1, gpt() + "--data synthetic:4000:64 --batch 8 --steps 1 --save " + path("small"));
  run(1, gpt() + "--data synthetic:4000:300 --batch 8 --steps 1 --checkpoint " + path("large"));
  std::ofstream(path("words")) << "1 2\nfish 3\n";
  std::ofstream(path("beyond")) << "1 64\n";
  std::ofstream(path("nothing")) << "\n \n";
  const std::string small = "--max-tokens 4 --init " + path("small") + " ";
  const std::vector<std::pair<std::string, std::string>> refused = {
      {small + "--prompt abc", "--prompt: it has token 97, and the model has the tokens 0 to 63"},
      {small + "--prompt abc --width 64 --layers 12",
       "--layers 12: the model of --init " + path("small") + " has 1. Leave --layers out"},
      {"--resume " + path("large") + " --prompt a --width 96", "--width 96: the model of the checkpoint has 32."},
      {small + "--prompts " + path("words"), "line 2: 'fish' is no token id"},
      {small + "--prompts " + path("beyond"), "beyond: prompt 1 has token 64, and the model has the tokens 0 to 63"},
      {small + "--prompts " + path("nothing"), "nothing has no prompt"},
      {small + "--prompts " + path("absent"), "absent"},
      {small + "--prompts " + path("small"), "small"},
      {small + "--prompt a --seq 32", "--seq 32: the model has 16. Leave --seq out: the model decides it."},
      {"--resume " + path("large") + " --prompts " + path("beyond") + " --seq 8", "--seq 8: the model has 16."},
      {small + "--prompt a --max-tokens 16", "have 17 tokens together, and the model has 16 positions"},
      {small + "--prompt a --pp 2", "--pp 2: the model has 1 block"},
      {small + "--prompt a --precision fp8", "--generate with --precision fp8: text is generated in bf16 at least"},
      {"--resume " + path("large") + " --prompt a --max-tokens 4", "--prompt: the model has 300 tokens, which are not"},
      {"--resume " + path("none") + " --prompt a", "none"},
      {"--resume " + path("large") + " --prompt a --heads 3", "--heads 3: the model of the checkpoint has 2."},
      {"--resume " + path("words") + " --prompt a", "words: it is no folder. Name a checkpoint, or a folder of"},
      {"--model llama --prompt a --init " + path("small"), "config.json has model_type \"gpt2\". Use --model gpt."},
      {"--model llama --resume " + path("large") + " --prompt a", "it is of model gpt, and this is --model llama"}};
  for (const auto& [flags, message] : refused) {
    const std::string all = "--device cpu --model gpt --generate " + flags;
    const bool has_stages = flags.find("--pp") != std::string::npos;
    const Outcome outcome =
        has_stages ? train_on_cpu(2, all) : run_command(fmt::format("{} {}", DDPTRAIN_PROGRAM, all));
    EXPECT_EQ(outcome.exit_code, 2) << flags << '\n' << outcome.output;
    EXPECT_TRUE(outcome.says(message)) << flags << '\n' << outcome.output;
  }
}

TEST_F(UseModel, ACheckpointTellsItsModel) {
  std::ofstream(path("prompts")) << "1 2 3\n";
  const std::string model = language_models().back();
  run(1, model + "--data synthetic:4000:64 --batch 8 --steps 1 --checkpoint " + path("c"));
  const std::string generate = "--generate --max-tokens 4 --prompts " + path("prompts") + " ";
  const std::vector<std::string> expected = texts_of(run(1, "--model llama --resume " + path("c") + " " + generate));
  EXPECT_EQ(expected.size(), 1u);
  for (const std::string& resume : {path("c"), path("c/step-000000000001"), "auto --checkpoint " + path("c")}) {
    EXPECT_EQ(texts_of(run(1, generate + "--layers 2 --key-heads 2 --seq 16 --resume " + resume)), expected);
  }
  run(1, "--layers 2 --seq 16 --resume " + path("c") + " --export " + path("e"));
  for (const auto& [flags, message] : {std::pair("--layers 3", "--layers 3: the model of the checkpoint has 2."),
                                       {"--seq 8", "--seq 8: the model has 16. Leave --seq out"},
                                       {"--dropout-of-cnn 1", "unknown flag --dropout-of-cnn"}}) {
    for (const std::string& task : {generate, "--export " + path("f ")}) {
      const Outcome refused = train_on_cpu(1, "--device cpu " + task + flags + std::string(" --resume ") + path("c"));
      EXPECT_EQ(refused.exit_code, 2) << refused.output;
      EXPECT_TRUE(refused.says(message)) << refused.output;
    }
  }
}

TEST_F(UseModel, OneTokenIsNamedAsOne) {
  train_gpt();
  const Outcome outcome =
      run(1, "--model gpt --generate --prompt a --temperature 0 --max-tokens 1 --init " + path("gpt"));
  EXPECT_TRUE(outcome.says("\nTexts    1 prompt: 1 token of prompts, 1 token generated in ")) << outcome.output;
}

/// The tokens of the samples in a file of --metrics, by step.
std::map<std::int64_t, std::vector<std::string>> samples_in(const std::string& metrics) {
  std::map<std::int64_t, std::vector<std::string>> samples;
  for (const auto& line : json_lines(metrics)) {
    if (line.at("event") != "sample") continue;
    const auto tokens = line.at("tokens").get<std::vector<std::uint32_t>>();
    samples[line.at("step")].push_back(fmt::format("{}", fmt::join(tokens, " ")));
    EXPECT_EQ(line.at("number"), samples[line.at("step")].size());
  }
  return samples;
}

/// Large updates, so that the texts of two steps differ.
TEST_F(UseModel, SamplesAreTheTextsOfCheckpointsAndLeaveTheParametersAlone) {
  std::ofstream(path("prompts")) << "1 2 3\n63 5\n";
  const std::string texts = " --prompts " + path("prompts") + " --max-tokens 12 --temperature 0.8 --top-k 30 --seed 3";
  for (const std::string& model : language_models()) {
    const bool is_gpt = model.starts_with("--model gpt");
    const std::string train =
        model + "--data synthetic:4000:64 --batch 2 --lr 0.02 --optimizer adamw --dropout 0.1 " +
        "--seed 3 --virtual-ranks 4 --bucket-mb 0.005 --last-bucket-kb 1 --log-every 0 --eval-samples 8 --metrics " +
        path("m.jsonl");
    std::vector<std::pair<int, std::string>> meshes = {{1, ""}, {4, " --pp 2 --zero 3"}, {4, " --tp 2 --zero 2"}};
    if (is_gpt) meshes.insert(meshes.begin() + 1, {{2, " --zero 1"}, {2, " --zero 3"}});
    std::map<std::string, std::string> hashes;  // without samples, by --tp
    std::map<std::string, std::map<std::int64_t, std::vector<std::string>>> expected;
    for (const auto& [ranks, mesh] : meshes) {
      const std::string tensor = mesh.starts_with(" --tp 2") ? " --tp 2" : "";
      if (!hashes.contains(tensor)) {
        run(ranks, train + mesh + " --steps 10");
        hashes[tensor] = summary_in(path("m.jsonl")).at("parameter_hash");
        EXPECT_TRUE(samples_in(path("m.jsonl")).empty());
      }
      const std::string sampling = train + mesh + texts + " --sample-every 4 --steps 10";
      run(ranks, sampling + " --checkpoint-every 4 --keep 9 --checkpoint " + path("kept"));
      EXPECT_EQ(summary_in(path("m.jsonl")).at("parameter_hash"), hashes.at(tensor)) << model << mesh;
      const auto samples = samples_in(path("m.jsonl"));
      if (!expected.contains(tensor)) {
        for (const std::int64_t step : {4, 8, 10}) {
          const std::string checkpoint = fmt::format("{}/step-{:012}", path("kept"), step);
          const std::string generate = model.substr(0, model.find("--layers")) + "--generate --resume " + checkpoint;
          expected[tensor][step] = texts_of(run(ranks, generate + texts + tensor));
        }
        EXPECT_NE(expected[tensor][4], expected[tensor][8]) << "the test needs texts that differ";
      }
      EXPECT_EQ(samples, expected.at(tensor)) << model << mesh;
      if (ranks == 2) {  // a resumed run samples the step of its checkpoint, too
        fs::remove(folder_ / "m.jsonl");
        run(1, sampling + " --resume " + path("kept/step-000000000008"));
        EXPECT_EQ(summary_in(path("m.jsonl")).at("parameter_hash"), hashes.at(tensor)) << "resumed";
        auto rest = expected.at(tensor);
        rest.erase(4);
        EXPECT_EQ(samples_in(path("m.jsonl")), rest);
      }
      fs::remove_all(folder_ / "kept");
      fs::remove(folder_ / "m.jsonl");
    }
  }
}

TEST_F(UseModel, SamplesOfBytesAreShownAsText) {
  std::ofstream text(path("letters"));
  for (int i = 0; i < 4000; ++i) text << "abcd\x01"[i % 5];
  text.close();
  const std::string train = gpt() + "--batch 8 --steps 210 --lr 0.01 --optimizer adamw --metrics " + path("m.jsonl");
  const std::string letters = " --data " + path("letters");
  const std::string greedy = letters + " --sample-every 25 --temperature 0";
  run(2, train + letters + " --grad-accum 2");
  const std::string without_samples = summary_in(path("m.jsonl")).at("parameter_hash");
  const Outcome prompted = run(2, train + greedy + " --prompt dabc --grad-accum 2");
  EXPECT_EQ(summary_in(path("m.jsonl")).at("parameter_hash"), without_samples);
  EXPECT_EQ(prompted.count("step 210  sample: d"), 1) << prompted.output;
  EXPECT_TRUE(prompted.says("step 210  sample: dabcd?abcd?abcd?\n")) << prompted.output;
  const auto lines = json_lines(path("m.jsonl"));
  const auto sample = std::ranges::find_if(
      lines, [](const auto& line) { return line.at("event") == "sample" && line.at("step") == 210; });
  ASSERT_NE(sample, lines.end());
  const std::string turn = "abcd\x01";
  EXPECT_EQ(sample->at("text"), "d" + turn + turn + turn);
  EXPECT_EQ(sample->at("prompt"), nlohmann::json({'d', 'a', 'b', 'c'}));
  EXPECT_FALSE(prompted.says("token ids"));
  const Outcome unprompted = run(1, train + greedy);  // its prompt is the beginning of the last tenth of the text
  EXPECT_TRUE(unprompted.says("step 210  sample: abcd?abcd?abcd?a\n")) << unprompted.output;
  const Outcome ids = run(2, gpt() + "--batch 8 --steps 4 --sample-every 3 --data synthetic:4000:300 --max-tokens 5");
  EXPECT_EQ(ids.count("the samples are token ids. launch/generate-text shows text"), 1) << ids.output;
  EXPECT_EQ(ids.count("step 3  sample: "), 1) << ids.output;
  EXPECT_EQ(ids.count("step 4  sample: "), 1) << ids.output;
  std::ofstream(path("prompts")) << "1 2\n3\n";
  const Outcome nan =
      train_on_cpu(1, "--device cpu --baseline off " + gpt() +
                          "--batch 8 --steps 3 --lr 1e30 --on-nonfinite skip --sample-every 3 --max-tokens 5 " +
                          "--data synthetic:4000:300 --prompts " + path("prompts"));
  EXPECT_EQ(nan.exit_code, 1) << nan.output;
  for (const int prompt : {1, 2}) {
    const std::string warning =
        fmt::format("Step 3: the sample of prompt {} ends because a logit is NaN or infinite", prompt);
    EXPECT_EQ(nan.count(warning), 1) << nan.output;
  }
}

TEST_F(UseModel, SamplesThatCannotBeWrittenAreRefusedBeforeTraining) {
  std::ofstream(path("text")) << std::string(4000, 'a');
  const std::string train = gpt() + "--batch 8 --steps 4 --sample-every 2 --data ";
  const std::vector<std::pair<std::string, std::string>> refused = {
      {path("text") + " --prompt 12345678901234567", "have 18 tokens together, and the model has 16 positions"},
      {path("text") + " --prompt abcd --max-tokens 13", "have 17 tokens together, and the model has 16 positions"},
      {path("text") + " --max-tokens 16", "have 17 tokens together, and the model has 16 positions"},
      {path("text") + " --prompts " + path("absent"), "--prompts: " + path("absent")},
      {"synthetic:4000:300 --prompt a", "--prompt: the model has 300 tokens, which are not bytes"},
      {"synthetic:4000:64 --prompt a", "--prompt: it has token 97, and the model has the tokens 0 to 63"}};
  int ranks = 2;  // then 1
  for (const auto& [flags, message] : refused) {
    for (const char* task : {"", " --dry-run"}) {
      const Outcome outcome = train_on_cpu(ranks, "--device cpu " + train + flags + task);
      EXPECT_EQ(outcome.exit_code, 2) << flags << task << '\n' << outcome.output;
      EXPECT_EQ(outcome.count("ddptrain: "), 1) << flags << task << '\n' << outcome.output;
      EXPECT_TRUE(outcome.says(message)) << flags << task << '\n' << outcome.output;
    }
    ranks = 1;
  }
}

TEST_F(UseModel, TheMemoryOfSamplesIsToldBeforehand) {
  const std::string train = gpt() + "--batch 8 --steps 2 --data synthetic:4000:300 ";
  const auto described = [&](const std::string& flags) {
    const Outcome outcome = run(1, train + flags + "--describe --ranks 2");
    return nlohmann::json::parse(outcome.output).at("memory");
  };
  EXPECT_FALSE(described("").contains("samples"));
  run(2, train + "--sample-every 1 --metrics " + path("m.jsonl"));
  const auto expected = summary_in(path("m.jsonl")).at("description").at("memory").at("samples");
  EXPECT_GT(expected, 0);
  EXPECT_EQ(described("--sample-every 1 ").at("samples"), expected);
}

/// Replaces all values by NaN.
void poison_weights(const fs::path& safetensors) {
  std::fstream file(safetensors, std::ios::binary | std::ios::in | std::ios::out);
  std::uint64_t header = 0;
  file.read(reinterpret_cast<char*>(&header), sizeof(header));
  const std::size_t begin = sizeof(header) + static_cast<std::size_t>(header);
  file.seekp(static_cast<std::streamoff>(begin));
  file << std::string(static_cast<std::size_t>(fs::file_size(safetensors)) - begin, '\xff');
}

TEST_F(UseModel, WeightsThatAreNotNumbersAreAnError) {
  train_gpt();
  poison_weights(path("gpt/model.safetensors"));
  const std::string init = " --metrics " + path("m.jsonl") + " --init " + path("gpt");
  const Outcome evaluated =
      train_on_cpu(2, "--device cpu --evaluate --batch 8 " + gpt() + "--data " + path("text") + init);
  EXPECT_EQ(evaluated.exit_code, 1) << evaluated.output;
  EXPECT_TRUE(evaluated.says("test tokens\n")) << evaluated.output;  // mpirun may put the error after this line
  EXPECT_TRUE(evaluated.says("\nloss ")) << evaluated.output;
  EXPECT_EQ(evaluated.count("ddptrain: --evaluate: the loss is NaN or infinite"), 1) << evaluated.output;
  EXPECT_EQ(summary_in(path("m.jsonl")).at("event"), "evaluated");
  const Outcome generated =
      train_on_cpu(2, "--device cpu --model gpt --generate --tp 2 --prompt a --max-tokens 4" + init);
  EXPECT_EQ(generated.exit_code, 1) << generated.output;
  EXPECT_EQ(generated.count("ddptrain: --generate: a logit after prompt 1 is NaN or infinite"), 1) << generated.output;
}

/// Other sizes and classes than Fashion-MNIST's.
TEST_F(UseModel, ClassifiersTakeImagesOfOtherSizesAndClasses) {
  constexpr int kClasses = 12, kHeight = 15, kWidth = 18, kEach = 10;
  Bytes pixels, labels;
  for (int i = 0; i < kClasses * kEach; ++i) {
    const Bytes image(kHeight * kWidth, static_cast<std::uint8_t>(20 * (i % kClasses) + i / kClasses));
    pixels.insert(pixels.end(), image.begin(), image.end());
    labels.push_back(static_cast<std::uint8_t>(i % kClasses));
  }
  fs::create_directories(folder_ / "idx");
  for (const std::string part : {"train", "test"}) {
    const auto count = static_cast<std::uint32_t>(labels.size());
    tests::write_plain(folder_ / ("idx/emnist-x-" + part + "-images-idx3-ubyte"),
                       tests::idx_bytes(0x0803, {count, kHeight, kWidth}, pixels));
    tests::write_plain(folder_ / ("idx/emnist-x-" + part + "-labels-idx1-ubyte"),
                       tests::idx_bytes(0x0801, {count}, labels));
  }
  for (const std::string& model : classifiers()) {
    const std::string flags = "--model " + model + " --batch 12 --data " + path("idx") + " ";
    run(2, flags + "--epochs 1 --save " + path("saved") + " --metrics " + path("m.jsonl"));
    const auto summary = summary_in(path("m.jsonl"));
    EXPECT_EQ(summary.at("classes"), kClasses);
    EXPECT_EQ(summary.at("height"), kHeight);
    EXPECT_EQ(summary.at("width"), kWidth);
    run(1, flags + "--evaluate --init " + path("saved") + " --metrics " + path("m.jsonl"));
    EXPECT_EQ(json_lines(path("m.jsonl")).back().at("classes"), kClasses);
  }
  const Outcome other =
      train_on_cpu(1, "--device cpu --model cnn --data synthetic:60 --evaluate --init " + path("saved"));
  EXPECT_EQ(other.exit_code, 2) << other.output;
  EXPECT_TRUE(other.says(", and the model for these images (28x28, 10 classes) has [")) << other.output;
}

TEST_F(UseModel, MistakesAreToldOnce) {
  run(1, "--model cnn --data synthetic:60 --batch 30 --steps 1 --save " + path("saved"));
  std::ofstream(path("text")) << "To be, or not to be, that is the question.";
  struct Mistake {
    std::string flags, message;
  };
  for (const Mistake& mistake :
       {Mistake{"--evaluate --data synthetic:60 --init " + path("none"), "--init: " + path("none")},
        Mistake{"--evaluate --data synthetic:60 --init " + path("text"), "--init: " + path("text")},
        Mistake{"--model " + classifiers().back() + " --evaluate --data synthetic:60 --init " + path("saved"),
                "has no tensor '"}}) {
    const Outcome outcome = train_on_cpu(2, "--device cpu " + mistake.flags);
    EXPECT_EQ(outcome.exit_code, 2) << mistake.flags << '\n' << outcome.output;
    EXPECT_EQ(outcome.count(mistake.message), 1) << mistake.flags << '\n' << outcome.output;
  }
}

/// Models of which the weights, and of which the activations take terabytes.
TEST_F(UseModel, ARunThatFindsNoMemoryIsRefusedBeforeItTakesAny) {
  const std::string huge = "--model gpt --layers 96 --width 65536 --heads 512 --ff 262144 --seq 64 ";
  const Outcome refused = train_on_cpu(2, "--device cpu --data synthetic:200000:64 --batch 8 " + huge);
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_EQ(refused.count("there is too little memory: "), 1) << refused.output;
  for (const char* part : {" parameters and their gradients alone would take ", " are free on ", " for 2 ranks, ",
                           "Use more GPUs or hosts with --zero 3, or a smaller model."}) {
    EXPECT_TRUE(refused.says(part)) << part << refused.output;
  }
  const std::string wide = "--model gpt --layers 4 --width 64 --heads 2 --ff 65536 --seq 1024 --batch 4096 ";
  const Outcome batch = train_on_cpu(1, "--device cpu --data synthetic:5000000:64 " + wide);
  EXPECT_EQ(batch.exit_code, 2) << batch.output;
  for (const char* part :
       {"a rank would keep ", "\nweights ", "\noptimizer ", "\nactivations ", "\nall ",
        "Less memory is needed with a smaller --batch and a larger --grad-accum", "--recompute block."}) {
    EXPECT_TRUE(batch.says(part)) << part << batch.output;
  }
}

TEST_F(UseModel, BatchAutoIsAPowerOfTwoThatTheDataHas) {
  const Outcome outcome =
      run(2, "--model " + classifiers().back() +
                 " --data synthetic:600 --batch auto --steps 2 --grad-accum 2 --metrics " + path("m.jsonl"));
  EXPECT_TRUE(outcome.says("--batch auto: 128 (")) << outcome.output;  // 2 ranks x 2 micro-steps x 128 of 600
  EXPECT_EQ(summary_in(path("m.jsonl")).at("batch_per_rank"), 128);
}

}  // namespace
}  // namespace ddptrain
