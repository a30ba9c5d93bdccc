#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/gpt2/gpt2.h"
#include "models/hugging_face/model_folder.h"
#include "models/workload.h"

/// GPT-2 models on disk, in the format of Hugging Face's transformers.

namespace ddptrain {

/// The weights of a GPT-2 with a tied head. Names and shapes are as in gpt2_parameters().
struct Gpt2Weights {
  Gpt2Shape shape;
  std::map<std::string, HostTensor> tensors;
};

/// A GPT-2 on disk: see ModelFolder, and config.json. A file without a config.json next to it has heads of width 64.
class Gpt2Folder {
 public:
  /// UsageError, naming the file, if one is missing or damaged, if the model is not a GPT-2 with GELU (tanh), or if a
  /// tensor is missing, unknown, of another shape, or not floating-point.
  explicit Gpt2Folder(const std::filesystem::path& path);

  const Gpt2Shape& shape() const { return shape_; }
  /// The values of a parameter as f32, row-major.
  std::vector<float> read(const std::string& name) const;
  /// UsageError if the head is not tied to the embedding. Reads both.
  void check_values() const { tensors_.check_tied_head(); }

 private:
  Gpt2Shape guess_shape() const;
  void check_tensors() const;

  std::optional<Gpt2Shape> configured_;  ///< By config.json.
  ModelFolder tensors_;
  Gpt2Shape shape_;
};

/// Writes model.safetensors and config.json to a folder, which is made if it is missing. transformers loads it as
/// GPT2LMHeadModel. Each file appears complete or not at all. Error if a tensor does not fit weights.shape; UsageError
/// if the files cannot be created.
void save_gpt2(const std::filesystem::path& folder, const Gpt2Weights& weights);

}  // namespace ddptrain
