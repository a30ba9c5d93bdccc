#pragma once

#include <cstdint>
#include <vector>

#include "runtime/ops/token_batch.h"

namespace ddptrain {

/// Logits of the next token. A model that computes them implements this interface and Model.
class LanguageModel {
 public:
  virtual ~LanguageModel() = default;

  /// f32 logits (host, without padding) of the token after position `position` of the batch's first window. Waits, and
  /// leaves no trace in training.
  virtual std::vector<float> next_token_logits(const TokenBatch& batch, std::int64_t position) = 0;
};

}  // namespace ddptrain
