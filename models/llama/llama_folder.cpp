#include "models/llama/llama_folder.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "models/hugging_face/special_tokens.h"
#include "runtime/core/error.h"
#include "runtime/ops/grouped_attention.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kPrefix = "model.";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "embed_tokens.weight";
constexpr const char* kModels = "models of Llama, Qwen2 and Qwen3";
constexpr Range kBetweenZeroAndOne = {"between 0 and 1", kLeastAboveZero, kMostBelowOne};
constexpr Range kBases = {"from 1 to 10^12", 1, 1e12};
constexpr Range kFactors = {"from 1 to 10^6", 1, 1e6};

// --- config.json --------------------------------------------------------------------------------------------------

/// `rope` is config.json's rope_scaling or rope_parameters.
RotaryScaling scaling_in(const ModelConfig& rope) {
  const char* const kind = rope.has("rope_type") ? "rope_type" : "type";
  rope.expect(kind, {"default", "llama3"}, "default");
  if (rope.entry(kind) != "llama3") return {};
  RotaryScaling scaling;
  scaling.factor = rope.number("factor", kFactors, std::nullopt);
  scaling.low_frequency_factor = rope.number("low_freq_factor", kFactors, std::nullopt);
  scaling.high_frequency_factor = rope.number("high_freq_factor", kFactors, std::nullopt);
  scaling.original_positions = rope.count("original_max_position_embeddings", std::nullopt);
  if (scaling.high_frequency_factor <= scaling.low_frequency_factor) {
    rope.refuse("high_freq_factor", "not above low_freq_factor");
  }
  return scaling;
}

/// transformers 4 writes rope_theta and rope_scaling, transformers 5 rope_parameters with both.
void read_rotary(const ModelConfig& config, LlamaShape& shape) {
  config.expect("partial_rotary_factor", {nullptr, 1.0}, nullptr);
  const char* const key = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const json entry = config.entry(key);
  if (!entry.is_null() && !entry.is_object()) config.refuse(key, "not an object");
  const ModelConfig rope(fmt::format("{}: {}", config.name(), key), entry.is_null() ? json::object() : entry, kModels);
  rope.expect("partial_rotary_factor", {nullptr, 1.0}, nullptr);
  const ModelConfig& has_base = rope.has("rope_theta") ? rope : config;
  shape.rotary_base = has_base.number("rope_theta", kBases, shape.rotary_base);
  shape.rotary_scaling = scaling_in(rope);
  rope.expect_only({"rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "low_freq_factor",
                    "high_freq_factor", "original_max_position_embeddings"});
}

/// Refuses what this network does not have.
void check_kinds(const ModelConfig& config) {
  config.expect("hidden_act", {"silu"}, "silu");
  config.expect("attention_bias", {false, nullptr}, false);
  config.expect("mlp_bias", {false, nullptr}, false);
  config.expect("use_sliding_window", {false, nullptr}, false);
  config.expect("quantization_config", {nullptr}, nullptr);
  const json layers = config.entry("layer_types");
  if (layers.is_null()) return;
  const auto is_full = [](const json& kind) { return kind == "full_attention"; };
  if (!layers.is_array() || !std::all_of(layers.begin(), layers.end(), is_full)) {
    config.refuse("layer_types", "only layers of the type \"full_attention\" can be read");
  }
}

std::int64_t ordinary_head_size(const LlamaShape& shape) {
  return LlamaShape{.width = shape.width, .heads = shape.heads}.size_of_head();
}

/// What config.json leaves out has the value that transformers gives it, but sizes must be there.
LlamaShape shape_in(const ModelConfig& config) {
  config.expect("model_type", {"llama", "qwen2", "qwen3"}, nullptr);
  check_kinds(config);
  LlamaShape shape;
  shape.qkv_bias = config.entry("model_type") == "qwen2";
  shape.head_norms = config.entry("model_type") == "qwen3";
  shape.layers = config.count("num_hidden_layers", std::nullopt);
  shape.width = config.count("hidden_size", std::nullopt);
  shape.heads = config.count("num_attention_heads", std::nullopt);
  shape.key_heads = config.count("num_key_value_heads", shape.heads);
  shape.feed_forward = config.count("intermediate_size", std::nullopt);
  shape.vocabulary = config.count("vocab_size", std::nullopt);
  if (config.has("head_dim")) {
    shape.head_size = config.count("head_dim", std::nullopt);
  } else {
    shape.head_size = shape.head_norms ? 128 : ordinary_head_size(shape);
  }
  const bool is_llama = !shape.head_norms && !shape.qkv_bias;
  shape.sequence = shape.positions = config.count("max_position_embeddings", is_llama ? 2048 : 32768);
  shape.norm_epsilon = config.number("rms_norm_eps", kBetweenZeroAndOne, 1e-6);
  shape.tied_head = config.flag("tie_word_embeddings", false);
  read_rotary(config, shape);
  check_config(llama_table(shape).config,
               {config.name() + ": ", "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size",
                "max_position_embeddings", "vocab_size", "num_key_value_heads", "head_dim"});
  return shape;
}

ModelConfig config_of(const fs::path& path) {
  const std::optional<fs::path> config = find_model_config(path);
  if (!config) usage_error("{}: put the config.json of the model beside it", path.string());
  return {*config, kModels};
}

std::string config_text(const LlamaShape& shape, const SpecialTokens& tokens) {
  const char* const name = shape.head_norms ? "Qwen3" : shape.qkv_bias ? "Qwen2" : "Llama";
  nlohmann::ordered_json config;
  config["architectures"] = {fmt::format("{}ForCausalLM", name)};
  if (!shape.qkv_bias) config["attention_bias"] = false;
  config["attention_dropout"] = 0.0;
  config[kBeginToken] = special_token_json(tokens, kBeginToken);
  config[kEndToken] = special_token_json(tokens, kEndToken);
  // transformers writes none for Qwen2, but reads it.
  if (!shape.qkv_bias || shape.size_of_head() != ordinary_head_size(shape)) config["head_dim"] = shape.size_of_head();
  config["hidden_act"] = "silu";
  config["hidden_size"] = shape.width;
  config["intermediate_size"] = shape.feed_forward;
  config["max_position_embeddings"] = shape.most_positions();
  config["model_type"] = shape.head_norms ? "qwen3" : shape.qkv_bias ? "qwen2" : "llama";
  config["num_attention_heads"] = shape.heads;
  config["num_hidden_layers"] = shape.layers;
  config["num_key_value_heads"] = shape.all_key_heads();
  if (tokens.count(kPaddingToken) > 0) config[kPaddingToken] = special_token_json(tokens, kPaddingToken);
  config["rms_norm_eps"] = shape.norm_epsilon;
  const RotaryScaling& scaling = shape.rotary_scaling;
  if (scaling.factor != 1.0) {
    config["rope_scaling"] = {{"factor", scaling.factor},
                              {"high_freq_factor", scaling.high_frequency_factor},
                              {"low_freq_factor", scaling.low_frequency_factor},
                              {"original_max_position_embeddings", scaling.original_positions},
                              {"rope_type", "llama3"}};
  }
  config["rope_theta"] = shape.rotary_base;
  config["tie_word_embeddings"] = shape.tied_head;
  config["vocab_size"] = shape.vocabulary;
  return config.dump(2) + "\n";
}

// --- parameters that are several stored tensors -------------------------------------------------------------------

constexpr std::string_view kQkv = "qkv_proj";
constexpr std::string_view kGateUp = "gate_up_proj";

/// Consecutive rows of a stored tensor, and where they are in the parameter.
struct Stretch {
  std::string stored;
  std::int64_t stored_row;
  std::int64_t row;
  std::int64_t rows;
};

/// Replaces `from` in a name.
std::string renamed(const std::string& name, std::string_view from, std::string_view to) {
  std::string result = name;
  return result.replace(result.find(from), from.size(), to);
}

/// The rows of a parameter with `rows` rows.
std::vector<Stretch> stretches_of(const std::string& name, std::int64_t rows, const LlamaShape& shape) {
  if (name.find(kGateUp) != std::string::npos) {
    return {{renamed(name, kGateUp, "gate_proj"), 0, 0, rows / 2},
            {renamed(name, kGateUp, "up_proj"), 0, rows / 2, rows / 2}};
  }
  if (name.find(kQkv) == std::string::npos) return {{name, 0, 0, rows}};
  const GroupedHeads heads{shape.heads, shape.all_key_heads(), shape.size_of_head()};
  const std::int64_t of_queries = heads.queries() * heads.head_size;
  std::vector<Stretch> stretches;
  for (std::int64_t group = 0; group < heads.key_heads; ++group) {
    const std::int64_t row = group * heads.group_columns();
    const std::int64_t key = group * heads.head_size;
    stretches.push_back({renamed(name, kQkv, "q_proj"), group * of_queries, row, of_queries});
    stretches.push_back({renamed(name, kQkv, "k_proj"), key, row + of_queries, heads.head_size});
    stretches.push_back({renamed(name, kQkv, "v_proj"), key, row + of_queries + heads.head_size, heads.head_size});
  }
  return stretches;
}

/// The stored tensors of a parameter.
std::vector<ModelFolder::Expected> stored_tensors(const ParameterSpec& spec, const LlamaShape& shape) {
  std::vector<ModelFolder::Expected> tensors;
  for (const Stretch& stretch : stretches_of(spec.name, spec.shape[0], shape)) {
    auto tensor = std::ranges::find(tensors, stretch.stored, &ModelFolder::Expected::name);
    if (tensor == tensors.end()) {
      tensor = tensors.insert(tensor, {stretch.stored, spec.shape});
      tensor->shape[0] = 0;
    }
    tensor->shape[0] += stretch.rows;
  }
  return tensors;
}

/// Older files have the frequencies of rotary positions.
bool is_frequencies(std::string_view name) { return name.find("rotary_emb.inv_freq") != std::string_view::npos; }

}  // namespace

LlamaFolder::LlamaFolder(const fs::path& path) : LlamaFolder(path, config_of(path)) {}

LlamaFolder::LlamaFolder(const fs::path& path, const ModelConfig& config)
    : shape_(shape_in(config)), special_(special_tokens_of(config)), tensors_(path, {kEmbedding, kHead}) {
  check_tensors();
}

void LlamaFolder::check_tensors() const {
  std::vector<ModelFolder::Expected> expected;
  for (const ParameterSpec& spec : llama_parameters(shape_)) {
    for (const ModelFolder::Expected& stored : stored_tensors(spec, shape_)) expected.push_back(stored);
  }
  tensors_.check(expected, fmt::format("a model of this kind with {} layers", shape_.layers), is_frequencies);
}

void LlamaFolder::check_values() const {
  if (shape_.tied_head) tensors_.check_tied_head();
}

std::vector<float> LlamaFolder::read(const std::string& name) const {
  const std::vector<ParameterSpec> specs = llama_parameters(shape_);
  const auto spec = std::ranges::find(specs, name, &ParameterSpec::name);
  DDP_CHECK(spec != specs.end(), "no parameter {}", name);
  const std::int64_t columns = spec->size() / spec->shape[0];
  std::vector<float> values(static_cast<std::size_t>(spec->size()));
  std::map<std::string, std::vector<float>> stored;
  for (const Stretch& stretch : stretches_of(name, spec->shape[0], shape_)) {
    if (stored.count(stretch.stored) == 0) stored[stretch.stored] = tensors_.read(stretch.stored);
    std::copy_n(stored[stretch.stored].begin() + stretch.stored_row * columns, stretch.rows * columns,
                values.begin() + stretch.row * columns);
  }
  return values;
}

void save_llama(const fs::path& folder, const LlamaWeights& weights) {
  std::map<std::string, HostTensor> stored;
  const auto name_in_file = [](const std::string& name) { return name == kHead ? name : kPrefix + name; };
  for (const ParameterSpec& spec : llama_parameters(weights.shape)) {
    const HostTensor& tensor = tensor_of(weights.tensors, spec);
    const std::int64_t columns = spec.size() / spec.shape[0];
    for (const auto& [name, shape] : stored_tensors(spec, weights.shape)) {
      stored[name_in_file(name)] = {shape, std::vector<float>(static_cast<std::size_t>(element_count(shape)))};
    }
    for (const Stretch& stretch : stretches_of(spec.name, spec.shape[0], weights.shape)) {
      std::copy_n(tensor.values.begin() + stretch.row * columns, stretch.rows * columns,
                  stored[name_in_file(stretch.stored)].values.begin() + stretch.stored_row * columns);
    }
  }
  write_model(folder, stored, config_text(weights.shape, weights.tokens));
}

}  // namespace ddptrain
