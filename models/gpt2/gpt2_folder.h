#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "models/gpt2/gpt2.h"
#include "models/workload.h"
#include "runtime/core/files/safetensors.h"

/// GPT-2 models on disk, in the format of Hugging Face's transformers.

namespace ddptrain {

/// The weights of a GPT-2 with a tied head. Names and shapes are as in gpt2_parameters().
struct Gpt2Weights {
  Gpt2Shape shape;
  std::map<std::string, HostTensor> tensors;
};

/// A GPT-2 on disk: a folder with config.json and model.safetensors (or the shards of model.safetensors.index.json), or
/// one safetensors file. Names may have the prefixes of wrappers ("module.", "_orig_mod."), and the tied embedding may
/// be stored as lm_head.weight alone. A file without a config.json next to it has heads of width 64. Files are mapped,
/// and values are read on request.
class Gpt2Folder {
 public:
  /// UsageError, naming the file, if one is missing or damaged, if the model is not a GPT-2 with GELU (tanh), or if a
  /// tensor is missing, unknown, of another shape, or not floating-point.
  explicit Gpt2Folder(const std::filesystem::path& path);

  const Gpt2Shape& shape() const { return shape_; }
  /// The values of a tensor as f32, row-major. Any floating-point type is converted.
  std::vector<float> read(const std::string& name) const;
  /// UsageError if the head is not tied to the embedding. Reads both.
  void check_values() const;

 private:
  struct Stored {
    const SafetensorsFile* file;
    std::string name;  ///< In the file.
  };

  void map_files(const std::vector<std::filesystem::path>& paths);
  const Stored& find(const std::string& name) const;
  const StoredTensor& tensor(const std::string& name) const;
  const std::string& file_of(const std::string& name) const { return find(name).file->name(); }
  Gpt2Shape guess_shape() const;
  void check_tensors() const;

  std::vector<SafetensorsFile> files_;
  std::map<std::string, Stored> stored_;  ///< By name without "transformer." and the names of wrappers.
  Gpt2Shape shape_;
};

/// Writes model.safetensors and config.json to a folder, which is made if it is missing. transformers loads it as
/// GPT2LMHeadModel. Each file appears complete or not at all. Error if a tensor does not fit weights.shape; UsageError
/// if the files cannot be created.
void save_gpt2(const std::filesystem::path& folder, const Gpt2Weights& weights);

}  // namespace ddptrain
