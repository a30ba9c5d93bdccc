#include "models/hugging_face/model_folder.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>

#include "runtime/core/error.h"
#include "runtime/core/files/atomic_file.h"
#include "runtime/core/files/json.h"
#include "runtime/core/files/mapped_file.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Parts of names that wrappers of a model put before or into them, at any depth.
constexpr std::array<std::string_view, 7> kWrappers = {
    "module",      "_orig_mod", "_forward_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
    "transformer", "model"};

/// The tensors of each file that model.safetensors.index.json names.
using FilesOfIndex = std::map<fs::path, std::set<std::string>>;

FilesOfIndex files_in(const fs::path& index) {
  const json content = parse_json_object(MappedFile(index).text(), index.string());
  const json map = content.value("weight_map", json());
  FilesOfIndex files;
  for (const auto& [tensor, file] : map.items()) {
    const fs::path name = file.is_string() ? file.get<std::string>() : std::string();
    if (name.empty()) usage_error("{}: damaged: tensor '{}' has no file", index.string(), printable(tensor));
    if (name.has_parent_path() || printable(name.string()) != name) {
      usage_error("{}: tensor '{}' is in '{}': only files of the same folder are read", index.string(),
                  printable(tensor), printable(name.string(), 60));
    }
    files[index.parent_path() / name].insert(tensor);
  }
  if (files.empty()) usage_error("{}: damaged: no weight_map", index.string());
  return files;
}

/// An index of another state of the folder would leave out weights, or have them from files of another model.
void check_index(const fs::path& index, const FilesOfIndex& files, const SafetensorsFile& file) {
  const std::set<std::string>& named = files.at(file.name());
  for (const auto& [name, tensor] : file.tensors()) {
    if (named.count(name) > 0) continue;
    const auto names_it = [&name = name](const auto& other) { return other.second.count(name) > 0; };
    const auto other = std::find_if(files.begin(), files.end(), names_it);
    if (other == files.end()) {
      usage_error("{}: damaged: it does not name tensor '{}', which is in {}", index.string(), printable(name),
                  file.name());
    }
    usage_error("{}: damaged: it says that tensor '{}' is in {}, and it is in {}", index.string(), printable(name),
                other->first.filename().string(), file.name());
  }
  for (const std::string& name : named) {
    if (file.tensors().count(name) > 0) continue;
    usage_error("{}: damaged: tensor '{}' is not in {}", index.string(), printable(name), file.name());
  }
}

std::vector<SafetensorsFile> open_files(const fs::path& path) {
  std::error_code ignored;
  std::vector<SafetensorsFile> files;
  const fs::path single = fs::is_directory(path, ignored) ? path / "model.safetensors" : path;
  const fs::path index = path / "model.safetensors.index.json";
  if (single == path || fs::exists(single, ignored)) {
    files.emplace_back(single);
    return files;
  }
  if (!fs::exists(index, ignored)) {
    usage_error("{}: no model.safetensors in this folder (other formats cannot be read: save it with transformers)",
                path.string());
  }
  const FilesOfIndex named = files_in(index);
  for (const auto& [file, tensors] : named) check_index(index, named, files.emplace_back(file));
  return files;
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

}  // namespace

ModelFolder::ModelFolder(const fs::path& path, const TiedNames& names) : names_(names), files_(open_files(path)) {
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
  if (!has(names_.embedding) && has(names_.head)) {
    auto head = stored_.extract(names_.head);
    head.key() = names_.embedding;
    stored_.insert(std::move(head));
  }
}

const ModelFolder::Stored& ModelFolder::find(const std::string& name) const {
  const auto found = stored_.find(name);
  if (found == stored_.end()) {
    usage_error("{}: no tensor '{}': not the weights of this model", file(), name);
  }
  return found->second;
}

const StoredTensor& ModelFolder::tensor(const std::string& name) const {
  const Stored& stored = find(name);
  return stored.file->tensor(stored.name);
}

std::vector<float> ModelFolder::read(const std::string& name) const {
  const Stored& stored = find(name);
  return stored.file->read_f32(stored.name);
}

void ModelFolder::check(const std::vector<Expected>& expected, const std::string& model,
                        const std::function<bool(std::string_view name)>& ignores) const {
  std::set<std::string> known = {names_.head};
  for (const auto& [name, shape] : expected) {
    known.insert(name);
    const StoredTensor& found = tensor(name);
    if (found.shape != shape) {
      usage_error("{}: tensor '{}' has the shape [{}], not [{}]", file_of(name), name,
                  printable(fmt::format("{}", fmt::join(found.shape, ", "))), fmt::join(shape, ", "));
    }
    if (!is_floating(found.type)) {
      usage_error("{}: tensor '{}' is {}, not of floating-point numbers", file_of(name), name, name_of(found.type));
    }
  }
  for (const auto& [name, stored] : stored_) {
    if (known.count(name) != 0 || ignores(name)) continue;
    usage_error("{}: tensor '{}' is none of {}", stored.file->name(), printable(stored.name), model);
  }
}

void ModelFolder::check_tied_head() const {
  if (!has(names_.head)) return;
  const StoredTensor& head = tensor(names_.head);
  const StoredTensor& embedding = tensor(names_.embedding);
  if (head.type != embedding.type || head.shape != embedding.shape ||
      !std::equal(head.data, head.data + head.bytes, embedding.data)) {
    usage_error("{}: {} differs from {}: not a model with a tied head (tie_word_embeddings in config.json)",
                file_of(names_.head), names_.head, names_.embedding);
  }
}

void write_model(const fs::path& folder, const std::map<std::string, HostTensor>& tensors, const std::string& config) {
  write_weights(folder, tensors);
  AtomicFile file(folder / "config.json");
  file.write(config);
  file.commit();
}

const HostTensor& tensor_of(const std::map<std::string, HostTensor>& tensors, const ParameterSpec& spec) {
  const auto found = tensors.find(spec.name);
  DDP_CHECK(found != tensors.end(), "no weights for {}", spec.name);
  const HostTensor& tensor = found->second;
  DDP_CHECK(tensor.shape == spec.shape && tensor.values.size() == static_cast<std::size_t>(spec.size()), "{} is [{}]",
            spec.name, fmt::join(tensor.shape, ", "));
  return tensor;
}

}  // namespace ddptrain
