#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "models/decoder/decoder.h"
#include "models/llama/llama.h"
#include "tests/models/model_run.h"
#include "tests/ops/token_batches.h"

namespace ddptrain::tests {
namespace {

constexpr std::int64_t kBatch = 4;
constexpr std::int64_t kSequence = 96;
constexpr std::int64_t kVocabulary = 50;

using Gradients = std::map<std::string, Values>;

/// Sizes that FP8 takes. The heads are wider together than the stream.
std::vector<std::pair<std::string, LlamaShape>> shapes() {
  LlamaShape llama = {.layers = 3, .width = 64, .heads = 2, .key_heads = 1, .head_size = 64, .feed_forward = 112};
  llama.sequence = kSequence;
  llama.vocabulary = kVocabulary;
  LlamaShape qwen2 = llama;
  qwen2.heads = 8;
  qwen2.key_heads = 4;
  qwen2.head_size = 0;
  qwen2.qkv_bias = true;
  LlamaShape qwen3 = llama;
  qwen3.head_size = 128;
  qwen3.head_norms = true;
  qwen3.tied_head = false;
  return {{"Llama", llama}, {"Qwen2", qwen2}, {"Qwen3", qwen3}};
}

struct RunOptions {
  float dropout = 0.0f;
  Recompute recompute = Recompute::none;
  std::int64_t head_rows = 0;
};

ModelRun make_run(Device& device, const LlamaShape& shape, const RunOptions& run = {}) {
  return {device, DType::bf16, [&](Bench& bench) {
            DecoderOptions options;
            options.table = llama_table(shape);
            options.max_batch = kBatch;
            options.seed = 99;
            options.dropout = run.dropout;
            options.recompute = run.recompute;
            options.head_rows = run.head_rows;
            const TokenBatch data = random_tokens(bench, kBatch, kSequence, kVocabulary, 12);
            return BoundModel{make_decoder(device, options, {data.source, data.source}), data};
          }};
}

/// Of a step, and of two that accumulate.
std::vector<Gradients> gradients_of(Device& device, const LlamaShape& shape, const RunOptions& options = {}) {
  ModelRun run = make_run(device, shape, options);
  std::vector<Gradients> result;
  for (const std::uint32_t first : {0, 4, 8}) {
    Slice slice = run.slice();
    slice.order.first = first;
    run.forward(slice, 0.01f);
    result.push_back(run.backward(first == 8));
  }
  return result;
}

/// Small gradients are sums that cancel.
void expect_near(const std::vector<Gradients>& all, const std::vector<Gradients>& all_expected, double tolerance) {
  ASSERT_EQ(all.size(), all_expected.size());
  for (std::size_t step = 0; step < all.size(); ++step) {
    double largest = 0.0;
    for (const auto& [name, values] : all_expected[step]) largest = std::max(largest, norm(values));
    for (const auto& [name, expected] : all_expected[step]) {
      const double allowed = tolerance * std::max(norm(expected), 0.01 * largest);
      EXPECT_LE(relative_error(all[step].at(name), expected) * norm(expected), allowed) << name << ", step " << step;
    }
  }
}

class LlamaGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      devices_[precision] = make_cuda_device({.precision = precision}, 0);
    }
  }
  std::unique_ptr<Device> fp8() const { return make_cuda_device({.precision = Precision::bf16, .fp8 = true}, 0); }

  std::unique_ptr<Device> cpu_ = make_cpu_device({.precision = Precision::fp32, .threads = 2});
  std::map<Precision, std::unique_ptr<Device>> devices_;
};

TEST_F(LlamaGpuTest, GradientsAreThoseOfTheCpu) {
  for (const auto& [name, shape] : shapes()) {
    SCOPED_TRACE(name);
    for (const RunOptions& options : {RunOptions{}, RunOptions{0.1f, Recompute::none, 100}}) {
      const std::vector<Gradients> expected = gradients_of(*cpu_, shape, options);
      expect_near(gradients_of(*devices_.at(Precision::fp32), shape, options), expected, 1e-4);
      expect_near(gradients_of(*devices_.at(Precision::bf16), shape, options), expected, 0.06);
    }
  }
}

TEST_F(LlamaGpuTest, LossesAreThoseOfTheCpu) {
  for (const auto& [name, shape] : shapes()) {
    SCOPED_TRACE(name);
    const auto loss = [&shape = shape](Device& device) {
      ModelRun run = make_run(device, shape);
      return run.evaluate(run.slice()).loss;
    };
    const double expected = loss(*cpu_);
    EXPECT_NEAR(loss(*devices_.at(Precision::fp32)), expected, 1e-5 * expected);
    EXPECT_NEAR(loss(*devices_.at(Precision::bf16)), expected, 5e-3 * expected);
  }
}

TEST_F(LlamaGpuTest, GradientsOfFp8AreNearThoseOfBf16) {
  const auto fp8 = this->fp8();
  for (const auto& [name, shape] : shapes()) {
    SCOPED_TRACE(name);
    const std::vector<Gradients> found = gradients_of(*fp8, shape);
    const std::vector<Gradients> expected = gradients_of(*devices_.at(Precision::bf16), shape);
    expect_near(found, expected, 0.2);
    EXPECT_NE(found, expected);
  }
}

TEST_F(LlamaGpuTest, RecomputedGradientsAreTheSameBits) {
  const auto fp8 = this->fp8();
  for (const auto& [name, shape] : shapes()) {
    SCOPED_TRACE(name);
    for (Device* device : {devices_.at(Precision::fp32).get(), devices_.at(Precision::bf16).get(), fp8.get()}) {
      for (const float dropout : {0.0f, 0.1f}) {
        const std::vector<Gradients> kept = gradients_of(*device, shape, {dropout});
        EXPECT_EQ(gradients_of(*device, shape, {dropout}), kept);
        EXPECT_EQ(gradients_of(*device, shape, {dropout, Recompute::gelu}), kept);
        EXPECT_EQ(gradients_of(*device, shape, {dropout, Recompute::selective}), kept);
        EXPECT_EQ(gradients_of(*device, shape, {dropout, Recompute::block}), kept);
      }
    }
  }
}

}  // namespace
}  // namespace ddptrain::tests
