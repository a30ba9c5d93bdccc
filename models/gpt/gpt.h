#pragma once

#include <memory>
#include <vector>

#include "models/model.h"

namespace ddptrain {

/// In the order in which backward completes them: the final norm, the blocks from the last to the second, the
/// embeddings, the first block. Names are Hugging Face's without the prefix "transformer."; weights of linear layers
/// are [out, in], which are its Conv1D's transposed. Start values as OpenAI's: deviation 0.02, of what adds to the
/// residual 0.02 / sqrt(2 layers).
std::vector<ParameterSpec> gpt_parameters(const GptShape& shape);

/// GPT-2 of options.gpt. forward() begins the backward pass: it works out the output layer in pieces of
/// options.head_rows and keeps the gradient, not the logits. Throws UsageError where the shape is impossible.
std::unique_ptr<Model> make_gpt(Device& device, const ModelOptions& options);

}  // namespace ddptrain
