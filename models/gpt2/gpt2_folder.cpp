#include "models/gpt2/gpt2_folder.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>

#include "runtime/core/error.h"
#include "runtime/core/files/atomic_file.h"
#include "runtime/core/files/json.h"
#include "runtime/core/files/mapped_file.h"
#include "runtime/core/files/safetensors.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kPrefix = "transformer.";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "wte.weight";
/// Parts of names that wrappers of a model put before or into them, at any depth.
constexpr std::array<std::string_view, 7> kWrappers = {
    "module",      "_orig_mod", "_forward_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
    "transformer", "model"};
constexpr std::int64_t kEndOfText = 50256;

json read_json(const fs::path& path) {
  const MappedFile file(path);
  return parse_json_object(file.text(), path.string());
}

/// config.json. What it leaves out has the value that transformers' GPT2Config gives it.
class Config {
 public:
  explicit Config(const fs::path& path) : name_(path.string()), json_(read_json(path)) {}

  Gpt2Shape shape() const {
    check_kind();
    Gpt2Shape shape;
    shape.layers = count("n_layer", shape.layers);
    shape.heads = count("n_head", shape.heads);
    shape.width = count("n_embd", shape.width);
    shape.sequence = count("n_positions", count("n_ctx", shape.sequence));
    shape.vocabulary = count("vocab_size", shape.vocabulary);
    shape.feed_forward = count("n_inner", 4 * shape.width);
    shape.norm_epsilon = epsilon(shape.norm_epsilon);
    check_config(gpt2_table(shape).config,
                 {name_ + ": ", "n_layer", "n_embd", "n_head", "n_inner", "n_positions", "vocab_size"});
    return shape;
  }

 private:
  void check_kind() const {
    expect("model_type", {"gpt2"}, nullptr);
    expect("activation_function", {"gelu_new", "gelu_pytorch_tanh"}, "gelu_new");
    expect("scale_attn_weights", {true}, true);
    expect("scale_attn_by_inverse_layer_idx", {false}, false);
    expect("add_cross_attention", {false}, false);
    expect("tie_word_embeddings", {true}, true);
  }

  void expect(const char* key, const std::vector<json>& allowed, const json& otherwise) const {
    const json value = json_.value(key, otherwise);
    if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return;
    usage_error("{}: {} {}: only GPT-2 models with {} {} can be read", name_, key, dump(value), key,
                fmt::join(dump_all(allowed), " or "));
  }

  std::int64_t count(const char* key, std::int64_t otherwise) const {
    const auto found = json_.find(key);
    if (found == json_.end() || found->is_null()) return otherwise;
    constexpr std::uint64_t kMost = 1'000'000'000;
    if (!found->is_number_unsigned() || found->get<std::uint64_t>() < 1 || found->get<std::uint64_t>() > kMost) {
      usage_error("{}: {} {}: not a number from 1 to {}", name_, key, dump(*found), kMost);
    }
    return found->get<std::int64_t>();
  }

  double epsilon(double otherwise) const {
    const auto found = json_.find("layer_norm_epsilon");
    if (found == json_.end()) return otherwise;
    if (!found->is_number() || !(found->get<double>() > 0.0 && found->get<double>() < 1.0)) {
      usage_error("{}: layer_norm_epsilon {}: not a number between 0 and 1", name_, dump(*found));
    }
    return found->get<double>();
  }

  static std::string dump(const json& value) {
    return printable(value.dump(-1, ' ', true, json::error_handler_t::replace), 60);
  }
  static std::vector<std::string> dump_all(const std::vector<json>& values) {
    std::vector<std::string> texts;
    for (const json& value : values) texts.push_back(dump(value));
    return texts;
  }

  std::string name_;
  json json_;
};

/// transformers' Conv1D keeps [in, out].
bool is_transposed(std::string_view name) {
  return name.find(".c_") != std::string_view::npos && name.substr(name.size() - 7) == ".weight";
}

Shape reversed(const Shape& shape) { return {shape.rbegin(), shape.rend()}; }

std::vector<fs::path> files_of(const fs::path& folder) {
  const fs::path single = folder / "model.safetensors";
  const fs::path index = folder / "model.safetensors.index.json";
  std::error_code ignored;
  if (fs::exists(single, ignored)) return {single};
  if (!fs::exists(index, ignored)) {
    usage_error("{}: no model.safetensors in this folder (other formats cannot be read: save it with transformers)",
                folder.string());
  }
  const json content = read_json(index);
  const json map = content.value("weight_map", json());
  std::set<fs::path> files;
  for (const auto& [tensor, file] : map.items()) {
    const fs::path name = file.is_string() ? file.get<std::string>() : std::string();
    if (name.empty() || name.has_parent_path() || printable(name.string()) != name) {
      usage_error("{}: damaged: tensor '{}' has no file", index.string(), printable(tensor));
    }
    files.insert(folder / name);
  }
  if (files.empty()) usage_error("{}: damaged: no weight_map", index.string());
  return {files.begin(), files.end()};
}

/// Buffers of causal masks that older files have.
bool is_mask(std::string_view name) {
  return name.find(".attn.bias") != std::string_view::npos || name.find(".attn.masked_bias") != std::string_view::npos;
}

/// "module._orig_mod.transformer.h.0.ln_1.bias" is "h.0.ln_1.bias".
std::string without_wrappers(std::string_view name) {
  std::string bare;
  while (!name.empty()) {
    const std::size_t end = std::min(name.find('.'), name.size());
    const std::string_view part = name.substr(0, end);
    name.remove_prefix(std::min(end + 1, name.size()));
    if (std::find(kWrappers.begin(), kWrappers.end(), part) != kWrappers.end()) continue;
    if (!bare.empty()) bare += '.';
    bare += part;
  }
  return bare;
}

bool is_floating(StoredType type) {
  return type == StoredType::f64 || type == StoredType::f32 || type == StoredType::f16 || type == StoredType::bf16;
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

Gpt2Folder::Gpt2Folder(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) usage_error("{}: there is no such file or folder", path.string());
  const bool folder = fs::is_directory(path, ignored);
  const fs::path config = (folder ? path : path.parent_path()) / "config.json";
  std::optional<Gpt2Shape> shape;
  if (folder || fs::exists(config, ignored)) shape = Config(config).shape();
  map_files(folder ? files_of(path) : std::vector<fs::path>{path});
  shape_ = shape ? *shape : guess_shape();
  check_tensors();
}

void Gpt2Folder::map_files(const std::vector<fs::path>& paths) {
  for (const fs::path& path : paths) files_.emplace_back(path);
  for (const SafetensorsFile& file : files_) {
    for (const auto& [name, tensor] : file.tensors()) {
      const auto [known, added] = stored_.emplace(without_wrappers(name), Stored{&file, name});
      if (!added) {
        usage_error("{}: tensor '{}' comes twice (also as '{}')", file.name(), printable(name),
                    printable(known->second.name));
      }
    }
  }
  // safetensors stores a tensor that has two names under one of them.
  if (stored_.count(kEmbedding) == 0 && stored_.count(kHead) != 0) {
    auto head = stored_.extract(kHead);
    head.key() = kEmbedding;
    stored_.insert(std::move(head));
  }
}

const Gpt2Folder::Stored& Gpt2Folder::find(const std::string& name) const {
  const auto found = stored_.find(name);
  if (found == stored_.end()) {
    usage_error("{}: no tensor '{}': not the weights of this GPT-2", files_.front().name(), name);
  }
  return found->second;
}

const StoredTensor& Gpt2Folder::tensor(const std::string& name) const {
  const Stored& stored = find(name);
  return stored.file->tensor(stored.name);
}

/// The shape that the tensors have, with heads of width 64.
Gpt2Shape Gpt2Folder::guess_shape() const {
  const auto dims = [&](const std::string& name) -> const Shape& {
    const Shape& shape = tensor(name).shape;
    if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1) {
      usage_error("{}: tensor '{}' is not a matrix", file_of(name), name);
    }
    return shape;
  };
  Gpt2Shape shape;
  shape.vocabulary = dims(kEmbedding)[0];
  shape.width = dims(kEmbedding)[1];
  shape.sequence = dims("wpe.weight")[0];
  shape.feed_forward = dims("h.0.mlp.c_fc.weight")[1];
  shape.layers = 0;
  while (stored_.count(fmt::format("h.{}.ln_1.weight", shape.layers)) != 0) ++shape.layers;
  shape.heads = shape.width / 64;
  if (shape.width % 64 != 0) {
    usage_error("{}: width {} is no multiple of 64, so the number of heads is not clear: put config.json beside it",
                file_of(kEmbedding), shape.width);
  }
  check_config(gpt2_table(shape).config, {file_of(kEmbedding) + ": "});
  return shape;
}

void Gpt2Folder::check_tensors() const {
  std::set<std::string> known = {kHead};
  for (const ParameterSpec& spec : gpt2_parameters(shape_)) {
    const std::string& name = spec.name;
    known.insert(name);
    const StoredTensor& found = tensor(name);
    const Shape stored = is_transposed(name) ? reversed(spec.shape) : spec.shape;
    if (is_transposed(name) && found.shape != stored && found.shape == spec.shape) {
      usage_error("{}: tensor '{}' is stored as [out, in] (nanoGPT does so); only transformers' [in, out] can be read",
                  file_of(name), name);
    }
    if (found.shape != stored) {
      usage_error("{}: tensor '{}' has the shape [{}], not [{}]", file_of(name), name,
                  printable(fmt::format("{}", fmt::join(found.shape, ", "))), fmt::join(stored, ", "));
    }
    if (!is_floating(found.type)) {
      usage_error("{}: tensor '{}' is {}, not of floating-point numbers", file_of(name), name, name_of(found.type));
    }
  }
  for (const auto& [name, stored] : stored_) {
    if (known.count(name) != 0 || is_mask(name)) continue;
    usage_error("{}: tensor '{}' is none of a GPT-2 with {} layers", stored.file->name(), printable(stored.name),
                shape_.layers);
  }
}

void Gpt2Folder::check_values() const {
  if (stored_.count(kHead) == 0) return;
  const StoredTensor& head = tensor(kHead);
  const StoredTensor& embedding = tensor(kEmbedding);
  if (head.type != embedding.type || head.shape != embedding.shape ||
      !std::equal(head.data, head.data + head.bytes, embedding.data)) {
    usage_error("{}: {} differs from {}: only models with a tied head can be read", file_of(kHead), kHead, kEmbedding);
  }
}

std::vector<float> Gpt2Folder::read(const std::string& name) const {
  const Stored& stored = find(name);
  std::vector<float> values = stored.file->read_f32(stored.name);
  const Shape& shape = tensor(name).shape;
  if (!is_transposed(name)) return values;
  return transposed(values, 1, shape[0], shape[1]);
}

void save_gpt2(const fs::path& folder, const Gpt2Weights& weights) {
  std::map<std::string, HostTensor> stored;
  for (const ParameterSpec& spec : gpt2_parameters(weights.shape)) {
    const auto found = weights.tensors.find(spec.name);
    DDP_CHECK(found != weights.tensors.end(), "no weights for {}", spec.name);
    const HostTensor& tensor = found->second;
    DDP_CHECK(tensor.shape == spec.shape && tensor.values.size() == static_cast<std::size_t>(spec.size()), "{} is [{}]",
              spec.name, fmt::join(tensor.shape, ", "));
    const bool turned = is_transposed(spec.name);
    stored[kPrefix + spec.name] =
        turned ? HostTensor{reversed(spec.shape), transposed(tensor.values, 1, spec.shape[0], spec.shape[1])} : tensor;
  }
  write_weights(folder, stored);
  AtomicFile config(folder / "config.json");
  config.write(config_text(weights.shape));
  config.commit();
}

}  // namespace ddptrain
