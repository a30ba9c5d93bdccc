#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "models/gpt/shape.h"
#include "models/workload.h"
#include "runtime/core/files/safetensors.h"

/// GPT-2 models as Hugging Face's transformers lays them out on disk.

namespace ddptrain {

/// The weights of a GPT-2 with tied head, to be written: names and shapes as gpt_parameters().
struct Gpt2Weights {
  GptShape shape;
  std::map<std::string, HostTensor> tensors;
};

/// A GPT-2 on disk: a model folder (config.json and model.safetensors, or the shards of model.safetensors.index.json),
/// or one safetensors file, with the config.json beside it or, without one, heads of width 64. Files are mapped: values
/// are read when they are asked for.
class Gpt2Folder {
 public:
  /// UsageError, naming the file, where one is missing or damaged, the model is another than GPT-2 with GELU (tanh), or
  /// a tensor is missing, unknown, of another shape, or not of floating-point numbers.
  explicit Gpt2Folder(const std::filesystem::path& path);

  const GptShape& shape() const { return shape_; }
  /// The values of a tensor, any floating-point type as f32, row-major.
  std::vector<float> read(const std::string& name) const;
  /// UsageError where the head is not tied to the embedding. Reads both.
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
  GptShape guess_shape() const;
  void check_tensors() const;

  std::vector<SafetensorsFile> files_;
  std::map<std::string, Stored> stored_;  ///< By name without "transformer.".
  GptShape shape_;
};

/// Writes model.safetensors and config.json, which transformers loads as GPT2LMHeadModel, into a folder that is made
/// where there is none; each file appears complete or not at all. Error where a tensor does not fit weights.shape;
/// UsageError where the files cannot be created.
void save_gpt2(const std::filesystem::path& folder, const Gpt2Weights& weights);

}  // namespace ddptrain
