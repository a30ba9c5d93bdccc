#include "models/gpt2/gpt2_folder.h"

#include <algorithm>

#include "tests/models/hugging_face/stored_model.h"

namespace ddptrain {
namespace {

using namespace ddptrain::tests;
using nlohmann::json;
namespace fs = std::filesystem;

/// Small, all sizes different, and with a feed-forward size of its own.
Gpt2Shape small_shape() { return {2, 6, 2, 20, 9, 11, 1e-4}; }

/// All weights of a GPT-2 on disk.
Gpt2Weights load_gpt2(const fs::path& path) {
  const Gpt2Folder folder(path);
  folder.check_values();
  Gpt2Weights weights{folder.shape(), {}};
  for (const ParameterSpec& spec : gpt2_parameters(folder.shape())) {
    weights.tensors[spec.name] = {spec.shape, folder.read(spec.name)};
  }
  return weights;
}

Gpt2Weights numbered_weights(const Gpt2Shape& shape) { return {shape, numbered_tensors(gpt2_parameters(shape))}; }

void expect_equal(const Gpt2Weights& a, const Gpt2Weights& b) {
  EXPECT_EQ(a.shape, b.shape);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors) {
    ASSERT_EQ(b.tensors.count(name), 1u) << name;
    EXPECT_EQ(b.tensors.at(name).shape, tensor.shape) << name;
    EXPECT_EQ(b.tensors.at(name).values, tensor.values) << name;
  }
}

class Gpt2FolderTest : public ::testing::Test {
 protected:
  void SetUp() override { save_gpt2(folder_.path(), weights_); }

  std::string fault(const fs::path& path) {
    const std::string message = error_message([&] { load_gpt2(path); });
    EXPECT_CONTAINS(message, folder_.path().string());
    return message;
  }
  std::string fault() { return fault(folder_.path()); }

  json config() const { return read_json(config_); }
  void write_config(const std::string& text) { write_text(config_, text); }
  std::string config_fault(const std::string& key, const json& value) {
    const json before = config();
    json changed = before;
    changed[key] = value;
    write_config(changed.dump());
    std::string message = fault();
    write_config(before.dump());
    return message;
  }

  TempFolder folder_;
  Gpt2Weights weights_ = numbered_weights(small_shape());
  fs::path config_ = folder_ / "config.json";
  fs::path model_ = folder_ / "model.safetensors";
};

TEST_F(Gpt2FolderTest, WhatIsSavedIsLoaded) {
  expect_equal(load_gpt2(folder_.path()), weights_);
  expect_equal(load_gpt2(model_), weights_);
  const Bytes before = read_all(model_);
  save_gpt2(folder_ / "again/deeper", load_gpt2(folder_.path()));
  EXPECT_EQ(read_all(folder_ / "again/deeper/model.safetensors"), before);
  EXPECT_EQ(read_all(folder_ / "again/deeper/config.json"), read_all(config_));
}

TEST_F(Gpt2FolderTest, TheFileIsLaidOutAsTransformersDoes) {
  const SafetensorsFile file(model_);
  const Bytes bytes = read_all(model_);
  EXPECT_CONTAINS(std::string(bytes.begin(), bytes.end()), R"("__metadata__":{"format":"pt","producer":"ddptrain"})");
  EXPECT_EQ(file.tensors().size(), 2u + 2 * 12 + 2);
  EXPECT_EQ(file.tensors().count("lm_head.weight"), 0u);
  EXPECT_EQ(file.tensor("transformer.wte.weight").shape, (Shape{11, 6}));
  EXPECT_EQ(file.tensor("transformer.wpe.weight").shape, (Shape{9, 6}));
  EXPECT_EQ(file.tensor("transformer.h.1.attn.c_attn.weight").shape, (Shape{6, 18}));
  EXPECT_EQ(file.tensor("transformer.h.1.mlp.c_fc.weight").shape, (Shape{6, 20}));
  EXPECT_EQ(file.tensor("transformer.h.1.mlp.c_proj.weight").shape, (Shape{20, 6}));
  EXPECT_EQ(file.tensor("transformer.h.0.mlp.c_fc.bias").shape, (Shape{20}));
  for (const char* name : {"h.1.attn.c_attn", "h.0.attn.c_proj", "h.0.mlp.c_fc", "h.1.mlp.c_proj"}) {
    const std::string weight = std::string(name) + ".weight";
    const HostTensor& ours = weights_.tensors.at(weight);
    const std::vector<float> theirs = file.read_f32("transformer." + weight);
    const std::int64_t out = ours.shape[0];
    const std::int64_t in = ours.shape[1];
    for (std::int64_t o = 0; o < out; ++o) {
      for (std::int64_t i = 0; i < in; ++i) {
        ASSERT_EQ(theirs[static_cast<std::size_t>(i * out + o)], ours.values[static_cast<std::size_t>(o * in + i)]);
      }
    }
  }
  EXPECT_EQ(file.read_f32("transformer.wte.weight"), weights_.tensors.at("wte.weight").values);
}

TEST_F(Gpt2FolderTest, MatricesBeyondATileAreTransposed) {
  const Gpt2Weights large = numbered_weights({1, 33, 3, 100, 4, 5, 1e-5});
  save_gpt2(folder_.path(), large);
  expect_equal(load_gpt2(folder_.path()), large);
}

TEST_F(Gpt2FolderTest, ConfigSaysWhatTransformersNeeds) {
  const json saved = config();
  EXPECT_EQ(saved.at("model_type"), "gpt2");
  EXPECT_EQ(saved.at("architectures"), json({"GPT2LMHeadModel"}));
  EXPECT_EQ(saved.at("activation_function"), "gelu_new");
  EXPECT_EQ(saved.at("n_inner"), 20);
  EXPECT_EQ(saved.at("layer_norm_epsilon"), 1e-4);
  EXPECT_TRUE(saved.at("eos_token_id").is_null());
  Gpt2Shape shape = small_shape();
  shape.vocabulary = 50257;
  shape.feed_forward = 24;
  save_gpt2(folder_.path(), numbered_weights(shape));
  EXPECT_EQ(config().at("eos_token_id"), 50256);
  EXPECT_TRUE(config().at("n_inner").is_null());
  EXPECT_EQ(load_gpt2(folder_.path()).shape, shape);
}

TEST_F(Gpt2FolderTest, OlderFilesAreRead) {
  Content content(model_);
  const std::string prefix = "transformer.";
  std::vector<std::string> names;
  for (const auto& [name, tensor] : content.tensors) names.push_back(name);
  for (const std::string& name : names) content.rename(name, name.substr(prefix.size()));
  content.add("h.0.attn.bias", StoredType::u8, {1, 1, 9, 9});
  content.add("h.1.attn.masked_bias", StoredType::f32, {});
  content.tensors["lm_head.weight"] = content.tensors.at("wte.weight");
  content.bytes["lm_head.weight"] = content.bytes.at("wte.weight");
  content.write(model_);
  write_config(R"({"model_type": "gpt2", "n_ctx": 9, "n_embd": 6, "n_head": 2, "n_layer": 2, "n_inner": 20,
                   "vocab_size": 11, "layer_norm_epsilon": 1e-4, "activation_function": "gelu_pytorch_tanh"})");
  expect_equal(load_gpt2(folder_.path()), weights_);
  content.bytes.at("lm_head.weight")[0] ^= 1;
  content.write(model_);
  EXPECT_CONTAINS(fault(), "tied head");
}

TEST_F(Gpt2FolderTest, ATiedHeadMayBeStoredAlone) {
  Content content(model_);
  content.rename("transformer.wte.weight", "lm_head.weight");
  content.write(model_);
  expect_equal(load_gpt2(folder_.path()), weights_);
  content.remove("lm_head.weight");
  content.write(model_);
  EXPECT_CONTAINS(fault(), "no tensor 'wte.weight'");
}

TEST_F(Gpt2FolderTest, NamesOfWrappersAreDropped) {
  const Content saved(model_);
  const std::string prefix = "transformer.";
  const std::vector<std::string> prefixes = {"module.transformer.",
                                             "_orig_mod.transformer.",
                                             "module._orig_mod.transformer.",
                                             "_orig_mod.module.",
                                             "model.transformer.",
                                             "module.module.model.",
                                             "_forward_module.transformer.",
                                             "transformer.module._orig_mod.",
                                             "_fsdp_wrapped_module."};
  for (const std::string& wrapped : prefixes) {
    Content content = saved;
    for (const auto& [name, tensor] : saved.tensors) content.rename(name, wrapped + name.substr(prefix.size()));
    content.rename(wrapped + "wte.weight", "module._orig_mod.lm_head.weight");
    content.rename(wrapped + "h.1.ln_1.bias", wrapped + "h.1._checkpoint_wrapped_module.ln_1.bias");
    content.write(model_);
    expect_equal(load_gpt2(folder_.path()), weights_);
  }
}

TEST_F(Gpt2FolderTest, FilesThatAreNoModelAreNamed) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 548105171\n";
  const std::string page = "\n<!DOCTYPE html>\n<html><body>Sign in</body></html>\n";
  write_plain(config_, Bytes(pointer.begin(), pointer.end()));
  EXPECT_CONTAINS(fault(), "config.json: not JSON; it looks like a Git LFS pointer (git lfs pull");
  save_gpt2(folder_.path(), weights_);
  const auto fault_of = [&](const std::string& content) {
    write_plain(model_, Bytes(content.begin(), content.end()));
    return fault();
  };
  EXPECT_CONTAINS(fault_of(pointer), "not a safetensors file; it looks like a Git LFS pointer (git lfs pull");
  EXPECT_CONTAINS(fault_of(page), "it looks like a web page");
  EXPECT_CONTAINS(fault_of("Entry not found"), "it looks like text that begins with 'Entry not found'");
  EXPECT_CONTAINS(fault_of("Denied"), "it looks like text that begins with 'Denied'");
  EXPECT_CONTAINS(fault_of(std::string("PK\x03\x04\0\0\x08\x08\0\0", 10)), "PyTorch checkpoints");
  EXPECT_CONTAINS(fault_of(std::string("GGUF\x03\0\0\0\xff\0\0\0\0\0\0\0", 16)), "a GGUF model");
}

TEST_F(Gpt2FolderTest, MatricesOfNanoGptAreNamed) {
  Content content(model_);
  std::swap(content.tensors.at("transformer.h.0.mlp.c_fc.weight").shape[0],
            content.tensors.at("transformer.h.0.mlp.c_fc.weight").shape[1]);
  content.write(model_);
  EXPECT_CONTAINS(fault(), "'h.0.mlp.c_fc.weight' is stored as [out, in] (nanoGPT does so)");
}

TEST_F(Gpt2FolderTest, ShardsAreRead) {
  Content first(model_);
  Content second(model_);
  json map;
  int i = 0;
  const Content whole(model_);
  for (const auto& [name, tensor] : whole.tensors) {
    const bool in_first = i++ % 2 == 0;
    (in_first ? second : first).remove(name);
    map[name] = in_first ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors";
  }
  first.write(folder_ / "model-00001-of-00002.safetensors");
  second.write(folder_ / "model-00002-of-00002.safetensors");
  fs::remove(model_);
  const auto write_index = [&](const json& index) {
    const std::string text = index.dump();
    write_plain(folder_ / "model.safetensors.index.json", Bytes(text.begin(), text.end()));
  };
  write_index({{"metadata", {{"total_size", 1}}}, {"weight_map", map}});
  expect_equal(load_gpt2(folder_.path()), weights_);
  const std::string file = map["transformer.wte.weight"];
  map.erase("transformer.wte.weight");
  write_index({{"weight_map", map}});
  EXPECT_CONTAINS(fault(), "index.json: damaged: it does not name tensor 'transformer.wte.weight', which is in");
  map["transformer.wte.weight"] = file;
  map["transformer.more"] = file;
  write_index({{"weight_map", map}});
  EXPECT_CONTAINS(fault(), "index.json: damaged: tensor 'transformer.more' is not in " + (folder_ / file).string());
  map.erase("transformer.more");
  map["transformer.wte.weight"] = "../elsewhere.safetensors";
  write_index({{"weight_map", map}});
  EXPECT_CONTAINS(fault(), "'transformer.wte.weight' is in '../elsewhere.safetensors': only files of the same folder");
  map["transformer.wte.weight"] = 1;
  write_index({{"weight_map", map}});
  EXPECT_CONTAINS(fault(), "'transformer.wte.weight' has no file");
  const bool is_in_first = file == "model-00001-of-00002.safetensors";
  const std::string other = is_in_first ? "model-00002-of-00002.safetensors" : "model-00001-of-00002.safetensors";
  map["transformer.wte.weight"] = other;
  write_index({{"weight_map", map}});
  EXPECT_CONTAINS(fault(), "tensor 'transformer.wte.weight' is");
  write_index(json::object());
  EXPECT_CONTAINS(fault(), "no weight_map");
}

TEST_F(Gpt2FolderTest, OneFileIsEnoughForHeadsOfWidth64) {
  const Gpt2Weights wide = numbered_weights({1, 128, 2, 200, 5, 7, 1e-5});
  save_gpt2(folder_.path(), wide);
  fs::remove(config_);
  expect_equal(load_gpt2(model_), wide);
  EXPECT_CONTAINS(fault(), "config.json: cannot be opened");
  save_gpt2(folder_.path(), weights_);
  fs::remove(config_);
  EXPECT_CONTAINS(fault(model_), "put config.json beside it");
}

TEST_F(Gpt2FolderTest, OtherTypesOfNumbersBecomeF32) {
  Content content(model_);
  const std::string name = "transformer.ln_f.bias";
  content.add(name, StoredType::bf16, {6});
  content.bytes.at(name)[1] = 0x40;  // 2.0
  content.write(model_);
  EXPECT_EQ(load_gpt2(folder_.path()).tensors.at("ln_f.bias").values, (std::vector<float>{2, 0, 0, 0, 0, 0}));
  content.add(name, StoredType::i64, {6});
  content.write(model_);
  EXPECT_CONTAINS(fault(), "is I64, not of floating-point numbers");
}

TEST_F(Gpt2FolderTest, ForeignModelsAreRefused) {
  EXPECT_CONTAINS(config_fault("model_type", "llama"), "model_type \"llama\": only GPT-2 models");
  EXPECT_CONTAINS(config_fault("activation_function", "relu"), "gelu_new");
  EXPECT_CONTAINS(config_fault("activation_function", nullptr), "gelu_new");
  EXPECT_CONTAINS(config_fault("tie_word_embeddings", false), "tie_word_embeddings false");
  EXPECT_CONTAINS(config_fault("scale_attn_weights", false), "scale_attn_weights");
  EXPECT_CONTAINS(config_fault("scale_attn_by_inverse_layer_idx", true), "inverse_layer");
  EXPECT_CONTAINS(config_fault("n_head", 4), "n_head 4: give a number that divides n_embd 6");
  for (const json& bad : {json(0), json(-3), json(1.5), json("x"), json(2'000'000'000), json::array()}) {
    for (const char* key : {"n_head", "n_layer", "n_embd", "n_positions", "vocab_size", "n_inner"}) {
      EXPECT_CONTAINS(config_fault(key, bad), key);
    }
  }
  for (const json& bad : {json(0), json(-1e-5), json(2), json("x"), json()}) {
    EXPECT_CONTAINS(config_fault("layer_norm_epsilon", bad), "layer_norm_epsilon");
  }
  write_config("{}");
  EXPECT_CONTAINS(fault(), "model_type null");
  write_config("{\"model_type\":");
  EXPECT_CONTAINS(fault(), "damaged JSON");
  write_config("");
  EXPECT_CONTAINS(fault(), "empty");
  fs::remove(model_);
  write_config("{\"model_type\":\"gpt2\"}");
  EXPECT_CONTAINS(fault(), "no model.safetensors");
  EXPECT_CONTAINS(fault(folder_ / "none"), "no such file or folder");
}

TEST_F(Gpt2FolderTest, ConfigAndWeightsMustAgree) {
  EXPECT_CONTAINS(config_fault("n_layer", 1), "is none of a GPT-2 with 1 layers");
  EXPECT_CONTAINS(config_fault("n_layer", 3), "no tensor 'h.2.");
  EXPECT_CONTAINS(config_fault("n_layer", 1'000'000'000), "n_layer 1000000000: give 1 to 1000");
  EXPECT_CONTAINS(config_fault("vocab_size", 12), "'wte.weight' has the shape [11, 6], not [12, 6]");
  EXPECT_CONTAINS(config_fault("n_positions", 8), "wpe.weight");
  EXPECT_CONTAINS(config_fault("n_embd", 8), "has the shape [6], not [8]");
  EXPECT_CONTAINS(config_fault("n_inner", 6), "mlp.c_proj.weight' has the shape [20, 6], not [6, 6]");
  Content content(model_);
  content.add("wte.weight", StoredType::f32, {11, 6});
  content.write(model_);
  EXPECT_CONTAINS(fault(), "comes twice");
  content.remove("wte.weight");
  content.add("score.weight", StoredType::f32, {2, 6});
  content.write(model_);
  EXPECT_CONTAINS(fault(), "'score.weight' is none");
}

TEST_F(Gpt2FolderTest, WhatCannotBeSavedLeavesTheFolderAsItWas) {
  const Bytes before = read_all(model_);
  Gpt2Weights damaged = weights_;
  damaged.tensors.at("h.0.attn.c_attn.weight").values.pop_back();
  EXPECT_THROW(save_gpt2(folder_.path(), damaged), Error);
  damaged.tensors.erase("h.0.attn.c_attn.weight");
  EXPECT_THROW(save_gpt2(folder_.path(), damaged), Error);
  EXPECT_EQ(read_all(model_), before);
  EXPECT_CONTAINS(error_message([&] { save_gpt2(config_ / "folder", weights_); }), "cannot be made");
}

}  // namespace
}  // namespace ddptrain
