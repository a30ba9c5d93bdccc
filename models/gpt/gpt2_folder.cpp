#include "models/gpt/gpt2_folder.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>

#include "data/atomic_file.h"
#include "data/json.h"
#include "data/mapped_file.h"
#include "data/safetensors.h"
#include "runtime/core/error.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kPrefix = "transformer.";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "wte.weight";
constexpr std::int64_t kEndOfText = 50256;

json read_json(const fs::path& path) {
  const MappedFile file(path);
  return parse_json_object({reinterpret_cast<const char*>(file.data()), file.size()}, path.string());
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
    shape.positions = count("n_positions", count("n_ctx", shape.positions));
    shape.vocabulary = count("vocab_size", shape.vocabulary);
    shape.feed_forward = count("n_inner", 4 * shape.width);
    shape.epsilon = epsilon(shape.epsilon);
    if (shape.width % shape.heads != 0) {
      usage_error("{}: n_embd {} cannot be divided into {} heads", name_, shape.width, shape.heads);
    }
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
    usage_error("{}: {} {:.60}: only GPT-2 models with {} {} can be read", name_, key, dump(value), key,
                fmt::join(dump_all(allowed), " or "));
  }

  std::int64_t count(const char* key, std::int64_t otherwise) const {
    const auto found = json_.find(key);
    if (found == json_.end() || found->is_null()) return otherwise;
    constexpr std::uint64_t kMost = 1'000'000'000;
    if (!found->is_number_unsigned() || found->get<std::uint64_t>() < 1 || found->get<std::uint64_t>() > kMost) {
      usage_error("{}: {} {:.60}: not a number from 1 to {}", name_, key, dump(*found), kMost);
    }
    return found->get<std::int64_t>();
  }

  double epsilon(double otherwise) const {
    const auto found = json_.find("layer_norm_epsilon");
    if (found == json_.end()) return otherwise;
    if (!found->is_number() || !(found->get<double>() > 0.0 && found->get<double>() < 1.0)) {
      usage_error("{}: layer_norm_epsilon {:.60}: not a number between 0 and 1", name_, dump(*found));
    }
    return found->get<double>();
  }

  static std::string dump(const json& value) { return value.dump(-1, ' ', true, json::error_handler_t::replace); }
  static std::vector<std::string> dump_all(const std::vector<json>& values) {
    std::vector<std::string> texts;
    for (const json& value : values) texts.push_back(dump(value));
    return texts;
  }

  std::string name_;
  json json_;
};

/// A tensor of a file, under its name without "transformer.".
struct Stored {
  const SafetensorsFile* file;
  std::string name;  ///< In the file.
};

/// The weights of a model, in one file or several.
class Checkpoint {
 public:
  explicit Checkpoint(const std::vector<fs::path>& paths) {
    for (const fs::path& path : paths) files_.emplace_back(path);
    for (const SafetensorsFile& file : files_) {
      for (const auto& [name, tensor] : file.tensors()) {
        const bool prefixed = name.rfind(kPrefix, 0) == 0;
        const std::string key = prefixed ? name.substr(std::string_view(kPrefix).size()) : name;
        if (!tensors_.emplace(key, Stored{&file, name}).second) {
          usage_error("{}: tensor '{}' comes twice", file.name(), name);
        }
      }
    }
  }

  const std::map<std::string, Stored>& tensors() const { return tensors_; }
  const std::string& name() const { return files_.front().name(); }
  bool has(const std::string& key) const { return tensors_.count(key) != 0; }

  const StoredTensor& tensor(const std::string& key) const {
    const Stored& stored = find(key);
    return stored.file->tensor(stored.name);
  }
  std::vector<float> read(const std::string& key) const {
    const Stored& stored = find(key);
    return stored.file->read_f32(stored.name);
  }
  /// The file that holds `key`, for messages.
  const std::string& file_of(const std::string& key) const { return find(key).file->name(); }

 private:
  const Stored& find(const std::string& key) const {
    const auto found = tensors_.find(key);
    if (found == tensors_.end()) {
      usage_error("{}: no tensor '{}': not the weights of this GPT-2", name(), key);
    }
    return found->second;
  }

  std::vector<SafetensorsFile> files_;
  std::map<std::string, Stored> tensors_;
};

/// transformers' Conv1D keeps [in, out].
bool is_transposed(std::string_view name) {
  return name.find(".c_") != std::string_view::npos && name.substr(name.size() - 7) == ".weight";
}

/// [rows, columns] to [columns, rows].
std::vector<float> transpose(const std::vector<float>& from, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kTile = 32;
  std::vector<float> to(from.size());
  for (std::int64_t top = 0; top < rows; top += kTile) {
    for (std::int64_t left = 0; left < columns; left += kTile) {
      for (std::int64_t c = left; c < std::min(left + kTile, columns); ++c) {
        for (std::int64_t r = top; r < std::min(top + kTile, rows); ++r) {
          to[static_cast<std::size_t>(c * rows + r)] = from[static_cast<std::size_t>(r * columns + c)];
        }
      }
    }
  }
  return to;
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
    if (name.empty() || name.has_parent_path())
      usage_error("{}: damaged: tensor '{}' has no file", index.string(), tensor);
    files.insert(folder / name);
  }
  if (files.empty()) usage_error("{}: damaged: no weight_map", index.string());
  return {files.begin(), files.end()};
}

/// The shape that the tensors have, with heads of width 64.
Gpt2Shape guess_shape(const Checkpoint& checkpoint) {
  const auto dims = [&](const std::string& key) -> const Shape& {
    const StoredTensor& tensor = checkpoint.tensor(key);
    if (tensor.shape.size() != 2 || tensor.shape[0] < 1 || tensor.shape[1] < 1) {
      usage_error("{}: tensor '{}' is not a matrix", checkpoint.file_of(key), key);
    }
    return tensor.shape;
  };
  Gpt2Shape shape;
  shape.vocabulary = dims(kEmbedding)[0];
  shape.width = dims(kEmbedding)[1];
  shape.positions = dims("wpe.weight")[0];
  shape.feed_forward = dims("h.0.mlp.c_fc.weight")[1];
  shape.layers = 0;
  while (checkpoint.has(fmt::format("h.{}.ln_1.weight", shape.layers))) ++shape.layers;
  shape.heads = shape.width / 64;
  if (shape.width % 64 != 0) {
    usage_error("{}: width {} is no multiple of 64, so the number of heads is not clear: put config.json beside it",
                checkpoint.file_of(kEmbedding), shape.width);
  }
  return shape;
}

void check_head(const Checkpoint& checkpoint) {
  if (!checkpoint.has(kHead)) return;
  const StoredTensor& head = checkpoint.tensor(kHead);
  const StoredTensor& embedding = checkpoint.tensor(kEmbedding);
  if (head.type != embedding.type || head.shape != embedding.shape ||
      !std::equal(head.data, head.data + head.bytes, embedding.data)) {
    usage_error("{}: {} differs from {}: only models with a tied head can be read", checkpoint.file_of(kHead), kHead,
                kEmbedding);
  }
}

/// Buffers of causal masks that older files have.
bool is_mask(std::string_view key) {
  return key.find(".attn.bias") != std::string_view::npos || key.find(".attn.masked_bias") != std::string_view::npos;
}

void check_no_others(const Checkpoint& checkpoint, const Gpt2Weights& weights) {
  for (const auto& [key, stored] : checkpoint.tensors()) {
    if (weights.tensors.count(key) != 0 || key == kHead || is_mask(key)) continue;
    usage_error("{}: tensor '{}' is none of a GPT-2 with {} layers", stored.file->name(), stored.name,
                weights.shape.layers);
  }
}

Gpt2Weights read_weights(const Checkpoint& checkpoint, const Gpt2Shape& shape) {
  if (shape.layers > static_cast<std::int64_t>(checkpoint.tensors().size())) {
    usage_error("{}: {} tensors are too few for {} layers", checkpoint.name(), checkpoint.tensors().size(),
                shape.layers);
  }
  Gpt2Weights weights{shape, {}};
  for (auto& [name, expected] : gpt2_tensors(shape)) {
    const Shape& found = checkpoint.tensor(name).shape;
    const bool transposed = is_transposed(name);
    if (found != (transposed ? reversed(expected) : expected)) {
      usage_error("{}: tensor '{}' has the shape [{}], not [{}]", checkpoint.file_of(name), name,
                  fmt::join(found, ", "), fmt::join(transposed ? reversed(expected) : expected, ", "));
    }
    std::vector<float> values = checkpoint.read(name);
    if (transposed) values = transpose(values, found[0], found[1]);
    weights.tensors[name] = {expected, std::move(values)};
  }
  check_head(checkpoint);
  check_no_others(checkpoint, weights);
  return weights;
}

std::string config_text(const Gpt2Shape& shape) {
  nlohmann::ordered_json config;
  config["activation_function"] = "gelu_new";
  config["architectures"] = {"GPT2LMHeadModel"};
  const json end_of_text = shape.vocabulary > kEndOfText ? json(kEndOfText) : json();
  config["bos_token_id"] = end_of_text;
  config["eos_token_id"] = end_of_text;
  config["layer_norm_epsilon"] = shape.epsilon;
  config["model_type"] = "gpt2";
  config["n_embd"] = shape.width;
  config["n_head"] = shape.heads;
  config["n_inner"] = shape.feed_forward == 4 * shape.width ? json() : json(shape.feed_forward);
  config["n_layer"] = shape.layers;
  config["n_positions"] = shape.positions;
  config["tie_word_embeddings"] = true;
  config["vocab_size"] = shape.vocabulary;
  return config.dump(2) + "\n";
}

}  // namespace

std::vector<std::pair<std::string, Shape>> gpt2_tensors(const Gpt2Shape& shape) {
  const std::int64_t width = shape.width;
  std::vector<std::pair<std::string, Shape>> tensors = {{kEmbedding, {shape.vocabulary, width}},
                                                        {"wpe.weight", {shape.positions, width}}};
  const auto add = [&](const std::string& name, const Shape& matrix) {
    tensors.emplace_back(name + ".weight", matrix);
    tensors.emplace_back(name + ".bias", Shape{matrix[0]});
  };
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string block = fmt::format("h.{}.", layer);
    add(block + "ln_1", {width});
    add(block + "attn.c_attn", {3 * width, width});
    add(block + "attn.c_proj", {width, width});
    add(block + "ln_2", {width});
    add(block + "mlp.c_fc", {shape.feed_forward, width});
    add(block + "mlp.c_proj", {width, shape.feed_forward});
  }
  add("ln_f", {width});
  return tensors;
}

Gpt2Weights load_gpt2(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) usage_error("{}: there is no such file or folder", path.string());
  const bool folder = fs::is_directory(path, ignored);
  const fs::path config = (folder ? path : path.parent_path()) / "config.json";
  std::optional<Gpt2Shape> shape;
  if (folder || fs::exists(config, ignored)) shape = Config(config).shape();
  const Checkpoint checkpoint(folder ? files_of(path) : std::vector<fs::path>{path});
  return read_weights(checkpoint, shape ? *shape : guess_shape(checkpoint));
}

void save_gpt2(const fs::path& folder, const Gpt2Weights& weights) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) usage_error("{}: the folder cannot be made: {}", folder.string(), error.message());
  std::map<std::string, StoredTensor> stored;
  std::vector<std::vector<float>> transposed;
  for (const auto& [name, shape] : gpt2_tensors(weights.shape)) {
    const auto found = weights.tensors.find(name);
    DDP_CHECK(found != weights.tensors.end(), "no weights for {}", name);
    const HostTensor& tensor = found->second;
    DDP_CHECK(tensor.shape == shape && static_cast<std::int64_t>(tensor.values.size()) == element_count(shape),
              "{} is [{}]", name, fmt::join(tensor.shape, ", "));
    const float* values = tensor.values.data();
    if (is_transposed(name)) values = transposed.emplace_back(transpose(tensor.values, shape[0], shape[1])).data();
    stored[kPrefix + name] = {StoredType::f32, is_transposed(name) ? reversed(shape) : shape,
                              reinterpret_cast<const std::uint8_t*>(values), tensor.values.size() * sizeof(float)};
  }
  write_safetensors(folder / "model.safetensors", stored, {{"format", "pt"}});
  AtomicFile config(folder / "config.json");
  config.write(config_text(weights.shape));
  config.commit();
}

}  // namespace ddptrain
