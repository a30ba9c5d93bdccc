#include "models/llama/llama_folder.h"

#include <algorithm>

#include "models/registry.h"
#include "tests/models/hugging_face/stored_model.h"

namespace ddptrain {
namespace {

using namespace ddptrain::tests;
using nlohmann::json;
namespace fs = std::filesystem;

/// Small, all sizes different: 4 heads of size 6 and 2 of keys, wider together than the stream.
LlamaShape small_shape() {
  return {.layers = 2,
          .width = 10,
          .heads = 4,
          .key_heads = 2,
          .head_size = 6,
          .feed_forward = 7,
          .sequence = 16,
          .positions = 16,
          .vocabulary = 11,
          .norm_epsilon = 1e-6,
          .rotary_base = 500000.0,
          .rotary_scaling = {32.0, 1.0, 4.0, 8192},
          .tied_head = false};
}
LlamaShape qwen2_shape() {
  LlamaShape shape = small_shape();
  shape.head_size = 0;
  shape.width = 16;
  shape.rotary_scaling = {};
  shape.qkv_bias = true;
  shape.tied_head = true;
  return shape;
}
LlamaShape wide_qwen2_shape() {
  LlamaShape shape = qwen2_shape();
  shape.head_size = 6;
  return shape;
}
LlamaShape qwen3_shape() {
  LlamaShape shape = small_shape();
  shape.rotary_scaling = {};
  shape.head_norms = true;
  return shape;
}

LlamaWeights numbered_weights(const LlamaShape& shape) {
  return {shape, {{kBeginToken, {1}}, {kEndToken, {2, 3}}}, numbered_tensors(llama_parameters(shape))};
}

/// The same model, with sizes that follow from others filled in.
LlamaShape filled(LlamaShape shape) {
  shape.head_size = shape.size_of_head();
  shape.key_heads = shape.all_key_heads();
  return shape;
}

class LlamaFolderTest : public ::testing::Test {
 protected:
  void SetUp() override { save(small_shape()); }

  void save(const LlamaShape& shape) {
    weights_ = numbered_weights(shape);
    save_llama(folder_.path(), weights_);
  }
  void expect_read() {
    const LlamaFolder folder(folder_.path());
    folder.check_values();
    EXPECT_EQ(filled(folder.shape()), filled(weights_.shape));
    for (const ParameterSpec& spec : llama_parameters(weights_.shape)) {
      EXPECT_EQ(folder.read(spec.name), weights_.tensors.at(spec.name).values) << spec.name;
    }
  }
  std::string fault() {
    const std::string message = error_message([&] { LlamaFolder(folder_.path()).check_values(); });
    EXPECT_CONTAINS(message, folder_.path().string());
    return message;
  }
  /// What is said about a config.json with another value.
  std::string fault_with(const std::string& key, const json& value) {
    json config = read_json(config_);
    config[key] = value;
    write_text(config_, config.dump());
    const std::string message = fault();
    save_llama(folder_.path(), weights_);
    return message;
  }

  TempFolder folder_;
  LlamaWeights weights_;
  fs::path config_ = folder_ / "config.json";
  fs::path model_ = folder_ / "model.safetensors";
};

TEST_F(LlamaFolderTest, WhatIsSavedIsRead) {
  for (const LlamaShape& shape : {small_shape(), qwen2_shape(), wide_qwen2_shape(), qwen3_shape()}) {
    save(shape);
    expect_read();
  }
}

TEST_F(LlamaFolderTest, TheFileIsLaidOutAsTransformersDoes) {
  const SafetensorsFile file(model_);
  EXPECT_EQ(file.tensors().size(), 3u + 2 * 9);
  EXPECT_EQ(file.tensor("lm_head.weight").shape, (Shape{11, 10}));
  EXPECT_EQ(file.tensor("model.embed_tokens.weight").shape, (Shape{11, 10}));
  EXPECT_EQ(file.tensor("model.layers.1.self_attn.q_proj.weight").shape, (Shape{24, 10}));
  EXPECT_EQ(file.tensor("model.layers.1.self_attn.k_proj.weight").shape, (Shape{12, 10}));
  EXPECT_EQ(file.tensor("model.layers.1.self_attn.v_proj.weight").shape, (Shape{12, 10}));
  EXPECT_EQ(file.tensor("model.layers.1.self_attn.o_proj.weight").shape, (Shape{10, 24}));
  EXPECT_EQ(file.tensor("model.layers.0.mlp.gate_proj.weight").shape, (Shape{7, 10}));
  // Ours: two heads of queries, their key, their value; and again. Theirs: all queries, all keys, all values.
  const std::vector<float>& ours = weights_.tensors.at("layers.0.self_attn.qkv_proj.weight").values;
  const auto rows = [&](std::int64_t first, std::int64_t count) {
    return std::vector<float>(ours.begin() + first * 10, ours.begin() + (first + count) * 10);
  };
  const auto joined = [](std::vector<float> a, const std::vector<float>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  EXPECT_EQ(file.read_f32("model.layers.0.self_attn.q_proj.weight"), joined(rows(0, 12), rows(24, 12)));
  EXPECT_EQ(file.read_f32("model.layers.0.self_attn.k_proj.weight"), joined(rows(12, 6), rows(36, 6)));
  EXPECT_EQ(file.read_f32("model.layers.0.self_attn.v_proj.weight"), joined(rows(18, 6), rows(42, 6)));
  const std::vector<float>& mlp = weights_.tensors.at("layers.0.mlp.gate_up_proj.weight").values;
  EXPECT_EQ(file.read_f32("model.layers.0.mlp.gate_proj.weight"), std::vector<float>(mlp.begin(), mlp.begin() + 70));
  EXPECT_EQ(file.read_f32("model.layers.0.mlp.up_proj.weight"), std::vector<float>(mlp.begin() + 70, mlp.end()));
}

TEST_F(LlamaFolderTest, ConfigNamesTheFamily) {
  EXPECT_EQ(read_json(config_).at("architectures"), json({"LlamaForCausalLM"}));
  EXPECT_EQ(read_json(config_).at("rope_scaling").at("rope_type"), "llama3");
  EXPECT_EQ(read_json(config_).at("eos_token_id"), json({2, 3}));
  save(qwen2_shape());
  EXPECT_EQ(read_json(config_).at("architectures"), json({"Qwen2ForCausalLM"}));
  EXPECT_EQ(read_json(config_).count("rope_scaling"), 0u);
  EXPECT_EQ(read_json(config_).count("head_dim"), 0u);
  save(wide_qwen2_shape());
  EXPECT_EQ(read_json(config_).at("head_dim"), 6);
  save(qwen3_shape());
  EXPECT_EQ(read_json(config_).at("architectures"), json({"Qwen3ForCausalLM"}));
}

/// Of transformers 5, and of a file that leaves out what has a default.
TEST_F(LlamaFolderTest, OtherConfigsOfTheSameModelAreRead) {
  json config = read_json(config_);
  json rope = config.at("rope_scaling");
  rope["rope_theta"] = config.at("rope_theta");
  config.erase("rope_scaling");
  config.erase("rope_theta");
  config["rope_parameters"] = rope;
  config["layer_types"] = {"full_attention", "full_attention"};
  write_text(config_, config.dump());
  expect_read();
  LlamaShape shape = small_shape();
  shape.width = 12;
  shape.heads = shape.key_heads = 2;
  shape.head_size = 0;
  shape.rotary_scaling = {};
  shape.rotary_base = 10000.0;
  shape.positions = shape.sequence = 2048;
  save(shape);
  write_text(config_, R"({"model_type": "llama", "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
                          "intermediate_size": 7, "vocab_size": 11, "rope_scaling": null, "head_dim": null})");
  expect_read();
}

TEST_F(LlamaFolderTest, WhatTheNetworkDoesNotHaveIsRefusedByNameAndValue) {
  EXPECT_CONTAINS(fault_with("model_type", "mistral"), "model_type \"mistral\": only models of Llama, Qwen2 and Qwen3");
  EXPECT_CONTAINS(fault_with("hidden_act", "gelu"), "hidden_act \"gelu\"");
  EXPECT_CONTAINS(fault_with("attention_bias", true), "attention_bias true");
  EXPECT_CONTAINS(fault_with("mlp_bias", true), "mlp_bias true");
  EXPECT_CONTAINS(fault_with("use_sliding_window", true), "use_sliding_window true");
  EXPECT_CONTAINS(fault_with("quantization_config", json({{"bits", 4}})), "quantization_config {\"bits\":4}");
  EXPECT_CONTAINS(fault_with("layer_types", json({"full_attention", "sliding_attention"})), "layer_types [");
  EXPECT_CONTAINS(fault_with("partial_rotary_factor", 0.5), "partial_rotary_factor 0.5");
  EXPECT_CONTAINS(fault_with("rope_scaling", json({{"rope_type", "yarn"}})), "rope_scaling: rope_type \"yarn\"");
  EXPECT_CONTAINS(fault_with("rope_scaling", json({{"type", "linear"}})), "rope_scaling: type \"linear\"");
  EXPECT_CONTAINS(fault_with("rope_scaling", json({{"rope_type", "llama3"}})), "rope_scaling: factor null");
  EXPECT_CONTAINS(fault_with("rope_scaling", 2), "rope_scaling 2: not an object");
  const json default_rope = {{"rope_type", "default"}, {"rope_theta", 2.0}};
  EXPECT_CONTAINS(fault_with("rope_parameters", json({{"full_attention", default_rope}})),
                  "rope_parameters: full_attention {");
  EXPECT_CONTAINS(fault_with("rope_scaling", json({{"mrope_section", {8, 12}}})), "rope_scaling: mrope_section [8,12]");
  EXPECT_CONTAINS(fault_with("rope_theta", 0), "rope_theta 0");
  EXPECT_CONTAINS(fault_with("rms_norm_eps", 0), "rms_norm_eps 0");
  EXPECT_CONTAINS(fault_with("tie_word_embeddings", "no"), "tie_word_embeddings \"no\"");
  EXPECT_CONTAINS(fault_with("num_key_value_heads", 3),
                  "num_key_value_heads 3: give a number that divides num_attention_heads 4");
  EXPECT_CONTAINS(fault_with("head_dim", 5), "head_dim 5: give an even number");
  EXPECT_CONTAINS(fault_with("head_dim", json()), "num_attention_heads 4: give a number that divides hidden_size 10");
  for (const char* key :
       {"num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size"}) {
    for (const json& bad : {json(), json(0), json(-3), json(1.5), json("x"), json(2'000'000'000)}) {
      EXPECT_CONTAINS(fault_with(key, bad), key);
    }
  }
  fs::remove(config_);
  EXPECT_CONTAINS(error_message([&] { LlamaFolder folder(model_); }), "put the config.json of the model beside it");
}

TEST_F(LlamaFolderTest, ConfigAndWeightsMustAgree) {
  EXPECT_CONTAINS(fault_with("num_hidden_layers", 1), "is none of a model of this kind with 1 layers");
  EXPECT_CONTAINS(fault_with("num_hidden_layers", 3), "no tensor 'layers.2.");
  EXPECT_CONTAINS(fault_with("model_type", "qwen2"), "no tensor 'layers.1.self_attn.q_proj.bias'");
  EXPECT_CONTAINS(fault_with("model_type", "qwen3"), "no tensor 'layers.1.self_attn.q_norm.weight'");
  EXPECT_CONTAINS(fault_with("num_key_value_heads", 4), "k_proj.weight' has the shape [12, 10], not [24, 10]");
  EXPECT_CONTAINS(fault_with("intermediate_size", 8), "down_proj.weight' has the shape [10, 7], not [10, 8]");
  EXPECT_CONTAINS(fault_with("tie_word_embeddings", true), "lm_head.weight differs from embed_tokens.weight");
  save(qwen3_shape());
  EXPECT_CONTAINS(fault_with("model_type", "llama"), "k_norm.weight' is none of");
}

/// A tied head may be stored, or stored alone. The buffer of older files is left out.
TEST_F(LlamaFolderTest, OlderFilesAreRead) {
  save(qwen2_shape());
  Content content(model_);
  content.add("model.layers.0.self_attn.rotary_emb.inv_freq", StoredType::f32, {3});
  content.tensors["lm_head.weight"] = content.tensors.at("model.embed_tokens.weight");
  content.bytes["lm_head.weight"] = content.bytes.at("model.embed_tokens.weight");
  content.write(model_);
  expect_read();
  content.remove("model.embed_tokens.weight");
  content.write(model_);
  expect_read();
}

TEST_F(LlamaFolderTest, SpecialTokensAreThoseOfTransformers) {
  const auto tokens = [&] { return LlamaFolder(folder_.path()).tokens(); };
  EXPECT_EQ(tokens(), weights_.tokens);
  json config = read_json(config_);
  config[kEndToken] = 4;
  config[kPaddingToken] = -1;
  config[kBeginToken] = json({7, "x", nullptr, 1.5, 1ull << 32});
  write_text(config_, config.dump());
  EXPECT_EQ(tokens(), (SpecialTokens{{kBeginToken, {7}}, {kEndToken, {4}}}));
  const fs::path generation = folder_ / "generation_config.json";
  write_text(generation, R"({"bos_token_id": 8, "eos_token_id": [5, 9]})");
  EXPECT_EQ(tokens(), (SpecialTokens{{kBeginToken, {7}}, {kEndToken, {5, 9}}}));
  write_text(generation, R"({"eos_token_id": null})");
  EXPECT_EQ(tokens().at(kEndToken), std::vector{4u});
  write_text(generation, "[");
  EXPECT_CONTAINS(fault(), "generation_config.json");
}

/// --export knows a model by its sizes and special tokens alone.
TEST_F(LlamaFolderTest, SizesAreAllOfAShape) {
  for (const LlamaShape& shape : {small_shape(), qwen2_shape(), qwen3_shape(), LlamaShape{}}) {
    LlamaShape expected = filled(shape);
    expected.positions = shape.most_positions();
    EXPECT_EQ(LlamaShape::of_sizes(shape.sizes()), expected);
  }
  const auto workload = make_workload("llama");
  workload->export_weights(folder_ / "exported", small_shape().sizes(), weights_.tensors);
  json config = read_json(config_);
  config[kBeginToken] = config[kEndToken] = json();
  EXPECT_EQ(read_json(folder_ / "exported/config.json"), config);
  weights_.tokens[kPaddingToken] = {0};
  workload->take_special_tokens(weights_.tokens);
  workload->export_weights(folder_ / "exported", small_shape().sizes(), weights_.tensors);
  EXPECT_EQ(LlamaFolder(folder_ / "exported").tokens(), weights_.tokens);
  EXPECT_EQ(read_all(folder_ / "exported/model.safetensors"), read_all(model_));
}

}  // namespace
}  // namespace ddptrain
