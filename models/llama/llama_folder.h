#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "models/hugging_face/model_config.h"
#include "models/hugging_face/model_folder.h"
#include "models/llama/llama.h"
#include "models/workload.h"

/// Models of this family on disk, in the format of Hugging Face's transformers.

namespace ddptrain {

/// The weights of a model. Names and shapes are as in llama_parameters().
struct LlamaWeights {
  LlamaShape shape;
  SpecialTokens tokens;
  std::map<std::string, HostTensor> tensors;
};

/// A model on disk: a folder with config.json, or a file next to it. See ModelFolder.
class LlamaFolder {
 public:
  /// UsageError, naming file, entry and value, if the model is none of LlamaForCausalLM, Qwen2ForCausalLM and
  /// Qwen3ForCausalLM, or is one with what this network does not have: another activation, biases elsewhere than at q,
  /// k and v, sliding windows, other scalings of rotary positions than Llama 3's. Or if a tensor is missing, unknown,
  /// of another shape, or not floating-point.
  explicit LlamaFolder(const std::filesystem::path& path);

  const LlamaShape& shape() const { return shape_; }
  const SpecialTokens& tokens() const { return special_; }
  /// The values of a parameter as f32, row-major.
  std::vector<float> read(const std::string& name) const;
  /// UsageError if config.json says that the head is tied, and it is not. Reads both.
  void check_values() const;

 private:
  LlamaFolder(const std::filesystem::path& path, const ModelConfig& config);
  void check_tensors() const;

  LlamaShape shape_;
  SpecialTokens special_;
  ModelFolder tensors_;
};

/// Writes model.safetensors and config.json to a folder, which is made if it is missing. transformers loads it as
/// Qwen3ForCausalLM if the model has norms of heads, as Qwen2ForCausalLM if it has biases of q, k and v, and as
/// LlamaForCausalLM otherwise. UsageError if the files cannot be created.
void save_llama(const std::filesystem::path& folder, const LlamaWeights& weights);

}  // namespace ddptrain
