#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "tests/launch/command_line.h"
#include "tests/launch/process.h"

namespace ddptrain {
namespace {

TEST(Hints, TheModelIsThatOfTheFolderOfInit) {
  const std::string folder = temporary("model_of_init");
  std::filesystem::create_directory(folder);
  const auto model_with = [&](const std::string& config) {
    std::ofstream(folder + "/config.json") << config;
    return parse({"--generate", "--prompt", "a", "--init", folder.c_str()}).options.model;
  };
  for (const auto& [type, model] : std::map<std::string, std::string>{{"gpt2", "gpt"}, {"qwen2", "llama"}}) {
    EXPECT_EQ(model_with(fmt::format("{{\"model_type\": \"{}\"}}", type)), model);
  }
  const std::string file = file_with("init.toml", fmt::format("init = \"{}\"\n", folder));
  EXPECT_EQ(parse({"--generate", "--prompt", "a", "--config", file.c_str()}).options.model, "llama") << "from qwen2";
  EXPECT_EQ(parse({"--model", "mlp", "--data", "d", "--init", folder.c_str()}).options.model, "mlp");
  for (const char* config : {"{\"model_type\": \"bert\"}", "{}", "{"}) {
    EXPECT_CONTAINS(error_message([&] { model_with(config); }), "--generate: model cnn has no texts. Use --model gpt");
  }
}

TEST(Hints, ATextThatIsNoImagesNamesTheModelsOfTexts) {
  const Outcome outcome = train_on_cpu(1, "--device cpu --data " DDP_SOURCE_DIR "/README.md");
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_TRUE(outcome.says("README.md: this file is no IDX data set. ")) << outcome.output;
  EXPECT_TRUE(outcome.says("A text needs --model gpt or llama.")) << outcome.output;
}

TEST(Hints, ZeroOnOneReplicaIsTold) {
  const std::string train = "--device cpu --model mlp --data synthetic:600 --batch 16 --steps 2 --baseline off --zero ";
  for (const auto& [ranks, zero, warnings] : {std::tuple{1, 3, 1}, {2, 3, 0}, {1, 0, 0}}) {
    const Outcome outcome = train_on_cpu(ranks, train + std::to_string(zero));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_EQ(outcome.count(": with one replica it divides nothing. Start more ranks."), warnings) << outcome.output;
  }
}

TEST(Hints, ADryRunComparesItsMemoryWithThatOfTheMachine) {
  const std::string dry =
      "--device cpu --dry-run --data synthetic:5000000:64 --model gpt --layers 4 --width 64 "
      "--heads 2 --seq 1024 ";
  const Outcome small = train_on_cpu(1, dry + "--batch 1");
  EXPECT_EQ(small.exit_code, 0) << small.output;
  EXPECT_TRUE(small.says(" are free on ")) << small.output;
  EXPECT_TRUE(small.output.ends_with(": it fits.\n")) << small.output;
  const Outcome large = train_on_cpu(1, dry + "--ff 65536 --batch 4096");
  EXPECT_EQ(large.exit_code, 0) << large.output;
  EXPECT_TRUE(large.says(": it does not fit. Less memory is needed with a smaller --batch")) << large.output;
  const Outcome weights = train_on_cpu(1, dry + "--width 8192 --layers 96 --heads 64 --batch 1");
  EXPECT_EQ(weights.exit_code, 0) << weights.output;
  EXPECT_TRUE(weights.says(" parameters and their gradients alone would take ")) << weights.output;
  EXPECT_TRUE(weights.says("Use more GPUs or hosts with --zero 3, or a smaller model.")) << weights.output;
  EXPECT_FALSE(train_on_cpu(1, dry + "--batch 1 --ranks 4").says("free on")) << "the machines of planned ranks";
}

TEST(Hints, TheDataOfARunAreNamed) {
  const std::string text = file_with("letters.txt", std::string(4000, 'a'));
  const std::string quick = "--device cpu --batch 4 --steps 1 --baseline off ";
  const Outcome images = train_on_cpu(2, quick + "--model mlp --data synthetic:600");
  EXPECT_EQ(images.count("Data set: 600 training and 60 test images from synthetic\n"), 1) << images.output;
  const Outcome letters = train_on_cpu(1, quick + "--model gpt --layers 1 --width 8 --heads 1 --seq 4 --data " + text);
  EXPECT_EQ(letters.count("Data set: 3600 training and 400 validation tokens from " + text + "\n"), 1)
      << letters.output;
}

TEST(Hints, AFileOfASweepNamesDdpsweep) {
  const std::string sweep = DDP_SOURCE_DIR "/configs/sweeps/scaling-cpu.toml";
  EXPECT_CONTAINS(message_of({"--config", sweep.c_str()}),
                  "scaling-cpu.toml: this is the file of a sweep: ddpsweep " + sweep + " runs it");
}

TEST(Hints, WrongValuesSayWhatToGive) {
  EXPECT_CONTAINS(message_of_line("--resume auto"),
                  "--resume auto: add --checkpoint DIR, or name the folder: --resume DIR");
}

}  // namespace
}  // namespace ddptrain
