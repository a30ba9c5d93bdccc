#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/layers/parameters.h"
#include "runtime/train/model.h"

namespace ddptrain {

/// Sizes of a GPT-2 style transformer (Radford et al., "Language models are unsupervised multitask learners", 2019).
struct GptShape {
  std::int64_t layers = 12;
  std::int64_t width = 768;
  std::int64_t heads = 12;
  std::int64_t feed_forward = 3072;
  std::int64_t sequence = 1024;  ///< Tokens of a window, each with a learned position.
  std::int64_t vocabulary = 50257;
  double norm_epsilon = 1e-5;

  std::int64_t padded_vocabulary() const { return (vocabulary + 127) / 128 * 128; }
  bool operator==(const GptShape&) const = default;
};

/// The activations that the backward pass recomputes, so that they need not be kept.
enum class Recompute : std::uint8_t {
  none,
  gelu,   ///< The GELU's output.
  block,  ///< All activations of a block but its input.
};

/// The names of a shape's sizes in messages: flags, or entries of config.json. `where` precedes every message.
struct GptShapeNames {
  std::string where;
  const char* layers = "layers";
  const char* width = "width";
  const char* heads = "heads";
  const char* feed_forward = "feed_forward";
  const char* sequence = "sequence";
  const char* vocabulary = "vocabulary";
};

/// UsageError if no model can have this shape.
void check_shape(const GptShape& shape, const GptShapeNames& names = {});
/// UsageError about --tp if `parts` ranks cannot split the shape.
void check_parts(const GptShape& shape, std::int64_t parts, const GptShapeNames& names);

/// The rows of the embedding for one part of the vocabulary. They are consecutive; `padded` is their number with
/// padding.
struct VocabularyRows {
  std::int64_t first, count, padded;
};
VocabularyRows vocabulary_rows(const GptShape& shape, const LayerPart& part);

/// The parameters in the order in which the backward pass completes them: the final norm, the blocks from the last to
/// the second, the embeddings, the first block. Names are Hugging Face's without the prefix "transformer.". Weights of
/// linear layers are [out, in], the transpose of Hugging Face's Conv1D. Initial values are OpenAI's: the standard
/// deviation is 0.02, or 0.02 / sqrt(2 layers) for weights whose output is added to the residual stream.
std::vector<ParameterSpec> gpt_parameters(const GptShape& shape, const LayerPart& part = {});

}  // namespace ddptrain
