#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/tensor.h"

/// GPT-2 models as Hugging Face's transformers lays them out on disk.

namespace ddptrain {

struct Gpt2Shape {
  std::int64_t layers = 12;
  std::int64_t heads = 12;
  std::int64_t width = 768;
  std::int64_t feed_forward = 3072;
  std::int64_t positions = 1024;
  std::int64_t vocabulary = 50257;
  double epsilon = 1e-5;  ///< Of the layer norms.

  bool operator==(const Gpt2Shape&) const = default;
};

struct HostTensor {
  Shape shape;
  std::vector<float> values;  ///< Row-major.
};

/// The weights of a GPT-2 with tied head. Names are those of transformers without "transformer."; matrices are
/// [out, in].
struct Gpt2Weights {
  Gpt2Shape shape;
  std::map<std::string, HostTensor> tensors;
};

/// Names and shapes of all tensors: wte.weight [vocabulary, width], wpe.weight [positions, width], for each layer N
/// h.N.ln_1, h.N.ln_2 (.weight and .bias [width]), h.N.attn.c_attn [3 width, width], h.N.attn.c_proj [width, width],
/// h.N.mlp.c_fc [feed_forward, width], h.N.mlp.c_proj [width, feed_forward] (.weight, and .bias [out]), and ln_f.
std::vector<std::pair<std::string, Shape>> gpt2_tensors(const Gpt2Shape& shape);

/// Reads a model folder (config.json and model.safetensors, or the shards of model.safetensors.index.json), or one
/// safetensors file, with the config.json beside it or, without one, heads of width 64. Any floating-point type becomes
/// f32. UsageError, naming the file, where one is missing or damaged, the model is another than GPT-2 with GELU (tanh)
/// and tied head, or a tensor is missing, unknown, or of another shape.
Gpt2Weights load_gpt2(const std::filesystem::path& path);

/// Writes model.safetensors and config.json, which transformers loads as GPT2LMHeadModel, into a folder that is made
/// where there is none; each file appears complete or not at all. Error where a tensor does not fit weights.shape;
/// UsageError where the files cannot be created.
void save_gpt2(const std::filesystem::path& folder, const Gpt2Weights& weights);

}  // namespace ddptrain
