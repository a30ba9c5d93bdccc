#pragma once

#include <cstdint>
#include <vector>

#include "models/decoder/config.h"
#include "models/decoder/parameters.h"

/// The GPT-2 family (Radford et al., "Language models are unsupervised multitask learners", 2019): a table.

namespace ddptrain {

/// Sizes of a GPT-2.
struct Gpt2Shape {
  std::int64_t layers = 12;
  std::int64_t width = 768;
  std::int64_t heads = 12;
  std::int64_t feed_forward = 3072;
  std::int64_t sequence = 1024;  ///< Tokens of a window, each with a learned position.
  std::int64_t vocabulary = 50257;
  double norm_epsilon = 1e-5;

  bool operator==(const Gpt2Shape&) const = default;
};

/// The decoder that is a GPT-2. Names are Hugging Face's without the prefix "transformer.". Weights of linear layers
/// are [out, in], the transpose of Hugging Face's Conv1D. Initial values are OpenAI's: the standard deviation is 0.02,
/// or 0.02 / sqrt(2 layers) for weights whose output is added to the residual stream.
DecoderTable gpt2_table(const Gpt2Shape& shape);

/// Its parameters, or one rank's slice of them.
std::vector<ParameterSpec> gpt2_parameters(const Gpt2Shape& shape, const TensorSlice& slice = {});

}  // namespace ddptrain
