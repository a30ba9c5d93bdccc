#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "models/workload.h"
#include "runtime/core/files/safetensors.h"

namespace ddptrain {

/// The weights of a model on disk, in the format of Hugging Face's transformers: a folder with model.safetensors (or
/// the shards of model.safetensors.index.json), or one safetensors file. Names may have the prefixes of wrappers
/// ("module.", "_orig_mod.", "model."), which are dropped. A tied embedding may be stored as the head alone. Files are
/// mapped, and values are read on request. Every fault is a UsageError that names the file.
class ModelFolder {
 public:
  /// Names of weights, without prefixes.
  struct TiedNames {
    std::string embedding;
    std::string head;
  };
  /// A tensor that the model has, as it is stored.
  struct Expected {
    std::string name;
    Shape shape;
  };

  ModelFolder(const std::filesystem::path& path, const TiedNames& names);

  /// The name of the first file.
  const std::string& file() const { return files_.front().name(); }
  const std::string& file_of(const std::string& name) const { return find(name).file->name(); }
  bool has(const std::string& name) const { return stored_.count(name) > 0; }
  const StoredTensor& tensor(const std::string& name) const;
  /// The values of a tensor as f32, row-major. Any floating-point type is converted.
  std::vector<float> read(const std::string& name) const;

  /// UsageError if a tensor is missing, has another shape or is not floating-point; or if there is a tensor that is
  /// neither expected nor the head nor one that `ignores` returns true for. `model` is the model in that message: "a
  /// GPT-2 with 12 layers".
  void check(const std::vector<Expected>& expected, const std::string& model,
             const std::function<bool(std::string_view name)>& ignores) const;
  /// UsageError if the head is stored and differs from the embedding. Reads both.
  void check_tied_head() const;

 private:
  struct Stored {
    const SafetensorsFile* file;
    std::string name;  ///< In the file.
  };

  const Stored& find(const std::string& name) const;

  TiedNames names_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Stored> stored_;  ///< By name without prefixes.
};

/// Writes model.safetensors and config.json to a folder, which is made if it is missing. Each file appears complete or
/// not at all. UsageError if the files cannot be created.
void write_model(const std::filesystem::path& folder, const std::map<std::string, HostTensor>& tensors,
                 const std::string& config);

/// The tensor of a parameter. Error if there is none, or if its shape is not the parameter's.
const HostTensor& tensor_of(const std::map<std::string, HostTensor>& tensors, const ParameterSpec& spec);

}  // namespace ddptrain
