#include "tests/models/second_family/tiny_llama.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "models/decoder/decoder.h"
#include "runtime/core/error.h"
#include "runtime/ops/meta_device.h"
#include "tests/models/model_run.h"
#include "tests/ops/token_batches.h"
#include "tests/support/says.h"

namespace ddptrain::tests {
namespace {

constexpr std::int64_t kWindows = 3;

/// Every second kind of a layer next to the kinds of GPT-2, so that no combination depends on another.
std::vector<DecoderTable> tables() {
  std::vector<DecoderTable> all(6, tiny_llama(2));
  all[1].config.normalises_heads = true;
  all[1].config.tied_head = true;
  all[2].config.positions = PositionKind::learned;
  all[2].names.position_embedding = "positions";
  all[2].config.qkv_bias = true;
  all[3].config.norm = NormKind::layer;
  all[3].config.activation = MlpActivation::gelu;
  all[3].config.positions = PositionKind::none;
  all[4].config.mlp_bias = all[4].config.output_bias = true;
  all[4].config.key_heads = 1;
  all[5].config.key_heads = 8;
  all[5].config.head_size = 2;
  all[5].config.layers = 1;
  return all;
}

class TinyLlamaTest : public ::testing::Test {
 protected:
  ModelRun make_run(const DecoderTable& table, float dropout, Recompute recompute, std::int64_t head_rows = 0) {
    ModelRun run(*device_, DType::f64, [&](Bench& bench) {
      DecoderOptions options;
      options.table = table;
      options.max_batch = kWindows;
      options.seed = 99;
      options.dropout = dropout;
      options.recompute = recompute;
      options.head_rows = head_rows;
      const TokenBatch data =
          random_tokens(bench, kWindows, static_cast<std::uint32_t>(table.config.sequence), table.config.vocabulary, 3);
      return BoundModel{make_decoder(*device_, options, {data.source, data.source}), data};
    });
    for (std::size_t i = 0; i < run.weights().size(); ++i) {  // large, so that no part of the model goes unseen
      Values values = random_values(run.weights()[i].size(), static_cast<std::uint32_t>(900 + i), -0.5, 0.5);
      const ParameterSpec& spec = run.model().parameters()[i];
      if (spec.initial.kind == InitialValue::Kind::constant && spec.initial.scale == 1.0f) {
        for (double& value : values) value += 1.0;
      }
      assign(run.weights()[i], values);
    }
    return run;
  }

  std::unique_ptr<Device> device_ = make_cpu_device({Precision::fp64, {}, true, 2});
};

TEST_F(TinyLlamaTest, IsAModel) {
  for (const DecoderTable& table : tables()) {
    expect_a_model([&] { return make_run(table, 0.0f, Recompute::none); });
  }
  expect_a_model([&] { return make_run(tiny_llama(3), 0.25f, Recompute::block, 5); });
}

TEST_F(TinyLlamaTest, RecomputedGradientsAreTheSameBits) {
  for (const float dropout : {0.0f, 0.25f}) {
    const auto gradients = [&](Recompute recompute) {
      ModelRun run = make_run(tiny_llama(), dropout, recompute);
      run.forward(run.slice(), 0.01f);
      return run.backward(false);
    };
    const std::map<std::string, Values> kept = gradients(Recompute::none);
    EXPECT_EQ(gradients(Recompute::gelu), kept);
    EXPECT_EQ(gradients(Recompute::selective), kept);
    EXPECT_EQ(gradients(Recompute::block), kept);
  }
}

TEST_F(TinyLlamaTest, HasTheParametersOfItsTable) {
  std::vector<std::string> names;
  for (const ParameterSpec& spec : decoder_parameters(tiny_llama(1)).specs) names.push_back(spec.name);
  const std::vector<std::string> expected = {"lm_head.weight",
                                             "norm.weight",
                                             "embed_tokens.weight",
                                             "layers.0.mlp.down_proj.weight",
                                             "layers.0.mlp.gate_up_proj.weight",
                                             "layers.0.post_attention_layernorm.weight",
                                             "layers.0.self_attn.o_proj.weight",
                                             "layers.0.self_attn.qkv_proj.weight",
                                             "layers.0.input_layernorm.weight"};
  EXPECT_EQ(names, expected);
}

/// Buffers share memory only while none of the two is needed, and each is as large as it says.
TEST_F(TinyLlamaTest, BuffersThatLiveAtTheSameTimeAreApart) {
  for (const Recompute recompute : {Recompute::none, Recompute::gelu, Recompute::selective, Recompute::block}) {
    DecoderOptions options;
    options.table = tiny_llama();
    options.max_batch = 2;
    options.recompute = recompute;
    const auto model = make_decoder(*device_, options, {});
    std::size_t sum = 0;
    const std::vector<NamedBuffer>& buffers = model->activation_buffers();
    for (const NamedBuffer& a : buffers) {
      sum += a.bytes();
      for (const NamedBuffer& b : buffers) {
        if (&a == &b || !a.lifetime.meets(b.lifetime)) continue;
        EXPECT_TRUE(a.begin + a.bytes() <= b.begin || b.begin + b.bytes() <= a.begin) << a.name << ", " << b.name;
      }
    }
    const std::size_t rounding = buffers.size() * kBufferAlignment;
    EXPECT_LE(model->memory().front().bytes, sum + rounding);
    if (recompute == Recompute::block) {
      EXPECT_LT(model->memory().front().bytes, sum);
    }
  }
}

/// Of a large vocabulary, whose logits would take most of the memory.
TEST_F(TinyLlamaTest, TheHeadNeverKeepsAllLogits) {
  const auto device = make_meta_device({}, DeviceKind::cpu);
  const auto rows_of_logits = [&](std::int64_t vocabulary, std::int64_t batch) {
    DecoderOptions options;
    options.table = tiny_llama(1);
    options.table.config.sequence = 1024;
    options.table.config.vocabulary = vocabulary;
    options.max_batch = batch;
    const auto model = make_decoder(*device, options, {});
    const auto& buffers = model->activation_buffers();
    return std::ranges::find(buffers, "logits", &NamedBuffer::name)->shape.at(0);
  };
  EXPECT_EQ(rows_of_logits(327680, 4), 2048);
  EXPECT_EQ(rows_of_logits(152064, 8), 4096);
  EXPECT_EQ(rows_of_logits(152064, 64), 64 * 1024 / 8);
  EXPECT_EQ(rows_of_logits(65536, 4), 4096);
  EXPECT_EQ(rows_of_logits(50257, 8), 4096);
}

TEST_F(TinyLlamaTest, RefusesTablesThatNoModelCanHave) {
  const auto message = [&](const auto& change) {
    DecoderTable table = tiny_llama();
    change(table.config);
    return error_message([&] { check_config(table.config, {}); });
  };
  EXPECT_CONTAINS(message([](DecoderConfig& config) { config.key_heads = 3; }),
                  "key_heads 3: give a number that divides heads 8");
  EXPECT_CONTAINS(message([](DecoderConfig& config) { config.key_heads = 9; }), "key_heads 9: give 1 to 8");
  EXPECT_CONTAINS(message([](DecoderConfig& config) { config.head_size = 5; }), "head_size 5: give an even number");
}

}  // namespace
}  // namespace ddptrain::tests
