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
  std::int64_t sequence = 1024;  ///< Tokens of a window; positions that are learned.
  std::int64_t vocabulary = 50257;
  double norm_epsilon = 1e-5;

  std::int64_t padded_vocabulary() const { return (vocabulary + 127) / 128 * 128; }
  bool operator==(const GptShape&) const = default;
};

/// How those who give a shape call its sizes: as flags, as entries of config.json. `where` precedes every message.
struct GptShapeNames {
  std::string where;
  const char* layers = "layers";
  const char* width = "width";
  const char* heads = "heads";
  const char* feed_forward = "feed_forward";
  const char* sequence = "sequence";
  const char* vocabulary = "vocabulary";
};

/// UsageError where no model has this shape.
void check_shape(const GptShape& shape, const GptShapeNames& names = {});
/// UsageError, about --tp, where so many ranks cannot split it.
void check_parts(const GptShape& shape, std::int64_t parts, const GptShapeNames& names);

/// The tokens of one part of the vocabulary: their rows of the embedding, with padding `padded`, follow each other.
struct VocabularyRows {
  std::int64_t first, count, padded;
};
VocabularyRows vocabulary_rows(const GptShape& shape, const LayerPart& part);

/// In the order in which backward completes them: the final norm, the blocks from the last to the second, the
/// embeddings, the first block. Names are Hugging Face's without the prefix "transformer."; weights of linear layers
/// are [out, in], which are its Conv1D's transposed. Initial values as OpenAI's: deviation 0.02, of what adds to the
/// residual 0.02 / sqrt(2 layers).
std::vector<ParameterSpec> gpt_parameters(const GptShape& shape, const LayerPart& part = {});

}  // namespace ddptrain
