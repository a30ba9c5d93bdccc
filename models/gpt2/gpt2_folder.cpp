#include "models/gpt2/gpt2_folder.h"

#include <string_view>

#include "models/hugging_face/model_config.h"
#include "runtime/core/error.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kPrefix = "transformer.";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "wte.weight";
constexpr std::int64_t kEndOfText = 50256;

/// What config.json leaves out has the value that transformers' GPT2Config gives it.
Gpt2Shape shape_in(const ModelConfig& config) {
  config.expect("model_type", {"gpt2"}, nullptr);
  config.expect("activation_function", {"gelu_new", "gelu_pytorch_tanh"}, "gelu_new");
  config.expect("scale_attn_weights", {true}, true);
  config.expect("scale_attn_by_inverse_layer_idx", {false}, false);
  config.expect("add_cross_attention", {false}, false);
  config.expect("tie_word_embeddings", {true}, true);
  Gpt2Shape shape;
  shape.layers = config.count("n_layer", shape.layers);
  shape.heads = config.count("n_head", shape.heads);
  shape.width = config.count("n_embd", shape.width);
  shape.sequence = config.count("n_positions", config.count("n_ctx", shape.sequence));
  shape.vocabulary = config.count("vocab_size", shape.vocabulary);
  shape.feed_forward = config.count("n_inner", 4 * shape.width);
  shape.norm_epsilon =
      config.number("layer_norm_epsilon", {"between 0 and 1", kLeastAboveZero, kMostBelowOne}, shape.norm_epsilon);
  check_config(gpt2_table(shape).config,
               {config.name() + ": ", "n_layer", "n_embd", "n_head", "n_inner", "n_positions", "vocab_size"});
  return shape;
}

std::optional<Gpt2Shape> configured_shape(const fs::path& path) {
  const std::optional<fs::path> config = find_model_config(path);
  if (!config) return std::nullopt;
  return shape_in(ModelConfig(*config, "GPT-2 models"));
}

/// transformers' Conv1D keeps [in, out].
bool is_transposed(std::string_view name) {
  return name.find(".c_") != std::string_view::npos && name.substr(name.size() - 7) == ".weight";
}

Shape reversed(const Shape& shape) { return {shape.rbegin(), shape.rend()}; }

/// Buffers of causal masks that older files have.
bool is_mask(std::string_view name) {
  return name.find(".attn.bias") != std::string_view::npos || name.find(".attn.masked_bias") != std::string_view::npos;
}

std::string config_text(const Gpt2Shape& shape) {
  nlohmann::ordered_json config;
  config["activation_function"] = "gelu_new";
  config["architectures"] = {"GPT2LMHeadModel"};
  const json end_of_text = shape.vocabulary > kEndOfText ? json(kEndOfText) : json();
  config["bos_token_id"] = end_of_text;
  config["eos_token_id"] = end_of_text;
  config["layer_norm_epsilon"] = shape.norm_epsilon;
  config["model_type"] = "gpt2";
  config["n_embd"] = shape.width;
  config["n_head"] = shape.heads;
  config["n_inner"] = shape.feed_forward == 4 * shape.width ? json() : json(shape.feed_forward);
  config["n_layer"] = shape.layers;
  config["n_positions"] = shape.sequence;
  config["tie_word_embeddings"] = true;
  config["vocab_size"] = shape.vocabulary;
  return config.dump(2) + "\n";
}

}  // namespace

Gpt2Folder::Gpt2Folder(const fs::path& path)
    : configured_(configured_shape(path)), tensors_(path, {kEmbedding, kHead}) {
  shape_ = configured_ ? *configured_ : guess_shape();
  check_tensors();
}

/// The shape that the tensors have, with heads of width 64.
Gpt2Shape Gpt2Folder::guess_shape() const {
  const auto dims = [&](const std::string& name) -> const Shape& {
    const Shape& shape = tensors_.tensor(name).shape;
    if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1) {
      usage_error("{}: tensor '{}' is not a matrix", tensors_.file_of(name), name);
    }
    return shape;
  };
  Gpt2Shape shape;
  shape.vocabulary = dims(kEmbedding)[0];
  shape.width = dims(kEmbedding)[1];
  shape.sequence = dims("wpe.weight")[0];
  shape.feed_forward = dims("h.0.mlp.c_fc.weight")[1];
  shape.layers = 0;
  while (tensors_.has(fmt::format("h.{}.ln_1.weight", shape.layers))) ++shape.layers;
  shape.heads = shape.width / 64;
  if (shape.width % 64 != 0) {
    usage_error("{}: width {} is no multiple of 64, so the number of heads is not clear: put config.json beside it",
                tensors_.file_of(kEmbedding), shape.width);
  }
  check_config(gpt2_table(shape).config, {tensors_.file_of(kEmbedding) + ": "});
  return shape;
}

void Gpt2Folder::check_tensors() const {
  std::vector<ModelFolder::Expected> expected;
  for (const ParameterSpec& spec : gpt2_parameters(shape_)) {
    const std::string& name = spec.name;
    const Shape stored = is_transposed(name) ? reversed(spec.shape) : spec.shape;
    const Shape& found = tensors_.tensor(name).shape;
    if (is_transposed(name) && found != stored && found == spec.shape) {
      usage_error("{}: tensor '{}' is stored as [out, in] (nanoGPT does so); only transformers' [in, out] can be read",
                  tensors_.file_of(name), name);
    }
    expected.push_back({name, stored});
  }
  tensors_.check(expected, fmt::format("a GPT-2 with {} layers", shape_.layers), is_mask);
}

std::vector<float> Gpt2Folder::read(const std::string& name) const {
  const Shape& shape = tensors_.tensor(name).shape;
  std::vector<float> values = tensors_.read(name);
  if (!is_transposed(name)) return values;
  return transposed(values, 1, shape[0], shape[1]);
}

void save_gpt2(const fs::path& folder, const Gpt2Weights& weights) {
  std::map<std::string, HostTensor> stored;
  for (const ParameterSpec& spec : gpt2_parameters(weights.shape)) {
    const HostTensor& tensor = tensor_of(weights.tensors, spec);
    const bool turned = is_transposed(spec.name);
    stored[kPrefix + spec.name] =
        turned ? HostTensor{reversed(spec.shape), transposed(tensor.values, 1, spec.shape[0], spec.shape[1])} : tensor;
  }
  write_model(folder, stored, config_text(weights.shape));
}

}  // namespace ddptrain
