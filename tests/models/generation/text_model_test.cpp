#include <algorithm>
#include <cmath>

#include "models/decoder/decoder.h"
#include "models/generation/text_generator.h"
#include "models/gpt2/gpt2.h"
#include "models/llama/llama.h"
#include "runtime/core/error.h"
#include "tests/models/model_run.h"
#include "tests/ops/token_batches.h"

namespace ddptrain::tests {
namespace {

constexpr std::int64_t kVocabulary = 23;
constexpr std::int64_t kSequence = 12;

std::vector<DecoderTable> tables() {
  LlamaShape llama = {.layers = 2, .width = 16, .heads = 4, .key_heads = 2, .feed_forward = 20};
  llama.sequence = kSequence;
  llama.vocabulary = kVocabulary;
  LlamaShape qwen2 = llama;
  qwen2.qkv_bias = true;
  LlamaShape qwen3 = llama;
  qwen3.head_norms = true;
  qwen3.head_size = 6;
  qwen3.tied_head = false;
  return {gpt2_table({2, 16, 4, 20, kSequence, kVocabulary}), llama_table(llama), llama_table(qwen2),
          llama_table(qwen3)};
}

/// A model that continues texts, with large random weights, so that no part of it goes unseen.
class TextRun {
 public:
  TextRun(Device& device, const DecoderTable& table, std::int64_t longest_text, DType rounding = DType::f64)
      : bench_(device, rounding) {
    DecoderOptions options;
    options.table = table;
    options.max_batch = 1;
    options.longest_text = longest_text;
    model_ = make_decoder(device, options, {});
    ModelTensors tensors;
    std::uint32_t seed = 900;
    for (const ParameterSpec& spec : model_->parameters()) {
      Values values = random_values(spec.size(), seed++, -0.5, 0.5);
      values.resize(static_cast<std::size_t>(spec.padded_size()));
      tensors.weights.push_back({bench_.put(values, {spec.padded_size()}).data, device.dtype(), spec.shape});
      tensors.gradients.push_back(bench_.poisoned(spec.shape));
    }
    model_->bind(tensors);
  }
  Decoder& model() { return *model_; }

  std::vector<float> logits(const std::vector<std::uint32_t>& text, std::int64_t done) {
    model_->begin_text(text, done);
    model_->forward_text(nullptr);
    const std::span<const float> logits = model_->next_logits();
    if (all_finite(logits)) {
      EXPECT_EQ(model_->likeliest_token(), sample_token(logits, {.temperature = 0.0}, 0, 0));
    }
    return {logits.begin(), logits.end()};
  }

 private:
  Bench bench_;
  std::unique_ptr<Decoder> model_;
};

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
  return largest;
}

class TextModelTest : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device_ = make_cpu_device({Precision::fp64, {}, true, 2});
  std::vector<std::uint32_t> text_ = {3, 22, 0, 7, 7, 19, 4, 1, 12, 5, 21, 2};
};

/// The loss of each token, by its logits, is the loss that training sees, and does not depend on the passes.
TEST_F(TextModelTest, TokenByTokenGivesTheLossOfTraining) {
  for (const DecoderTable& table : tables()) {
    TextRun run(*device_, table, kSequence);
    double loss = 0.0;
    for (std::int64_t size = 1; size < kSequence; ++size) {
      const std::vector<std::uint32_t> known(text_.begin(), text_.begin() + size);
      const std::vector<float> logits = run.logits(known, size - 1);
      ASSERT_EQ(std::ssize(logits), kVocabulary);
      double sum = 0.0;
      for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
      loss += std::log(sum) - logits[text_[static_cast<std::size_t>(size)]];
      EXPECT_LT(largest_difference(TextRun(*device_, table, kSequence).logits(known, 0), logits), 1e-6) << size;
    }
    ModelRun training(*device_, DType::f64, [&](Bench& bench) {
      DecoderOptions options;
      options.table = table;
      options.max_batch = 1;
      const TokenBatch data = put_tokens(bench, text_, 1, kSequence - 1);
      return BoundModel{make_decoder(*device_, options, {data.source, data.source}), data};
    });
    std::uint32_t seed = 900;
    for (const Tensor& weight : training.weights()) assign(weight, random_values(weight.size(), seed++, -0.5, 0.5));
    EXPECT_NEAR(training.evaluate(training.slice()).loss, loss, 1e-5 * loss);
  }
}

TEST_F(TextModelTest, GreedyTextIsTheSameInOnePassOrMany) {
  for (const DecoderTable& table : tables()) {
    TextRun run(*device_, table, kSequence);
    TextGenerator generator(run.model(), {}, *device_);
    std::vector<std::uint32_t> shown;
    const GenerationRequest request{{3, 22, 0}, 0, 9, {.temperature = 0.0}, {}};
    const GeneratedText text = generator.run(request, [&](std::uint32_t token) { shown.push_back(token); });
    EXPECT_EQ(text.tokens.size(), 9u);
    EXPECT_EQ(shown, text.tokens);
    std::vector<std::uint32_t> known = request.prompt;
    for (const std::uint32_t token : text.tokens) {
      EXPECT_EQ(sample_token(run.logits(known, 0), request.sampling, 0, 0), token);
      known.push_back(token);
    }
    GenerationRequest ended = request;
    ended.end_tokens = {text.tokens[4]};
    const auto first = std::ranges::find(text.tokens, text.tokens[4]) - text.tokens.begin();
    EXPECT_EQ(std::ssize(generator.run(ended, [](std::uint32_t) {}).tokens), first + 1);
    EXPECT_THROW(generator.run({{1, 2, 3, 4}, 0, 9}, [](std::uint32_t) {}), Error);
  }
}

/// Texts longer than a stretch of the attention kernel. After the first tokens, passes are replayed from a graph, also
/// those of another text.
TEST(TextOnGpus, IsThatOfTheCpu) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
  constexpr std::int64_t kLength = 150;
  const auto cpu = make_cpu_device({.precision = Precision::fp32, .threads = 2});
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const auto gpu = make_cuda_device({.precision = precision}, 0);
    const double tolerance = precision == Precision::fp32 ? 1e-4 : 0.1;
    for (DecoderTable table : tables()) {
      table.config.sequence = kLength;
      TextRun expected(*cpu, table, kLength, DType::bf16), found(*gpu, table, kLength, DType::bf16);
      for (const std::vector<std::uint32_t>& prompt : {std::vector<std::uint32_t>{3, 22, 0}, {5}}) {
        std::vector<std::uint32_t> text = prompt;
        std::int64_t done = 0;
        while (std::ssize(text) < kLength) {
          const std::vector<float> logits = expected.logits(text, done);
          const auto [least, most] = std::ranges::minmax(logits);
          ASSERT_LE(largest_difference(found.logits(text, done), logits), tolerance * (most - least)) << text.size();
          done = std::ssize(text);
          text.push_back(sample_token(logits, {.temperature = 0.7}, 0, static_cast<std::uint32_t>(done)));
        }
        EXPECT_LE(largest_difference(found.logits(text, 0), expected.logits(text, 0)), tolerance * 10) << "prefill";
      }
    }
  }
}

}  // namespace
}  // namespace ddptrain::tests
