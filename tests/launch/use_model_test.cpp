#include <cmath>
#include <filesystem>
#include <fstream>

#include "models/registry.h"
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
                           "Use a smaller model."}) {
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
