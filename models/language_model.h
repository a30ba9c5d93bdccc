#pragma once

#include <cstdint>
#include <vector>

#include "runtime/ops/token_batch.h"

namespace ddptrain {

/// What a model of text can do besides being trained; a model that can implements it beside Model.
class LanguageModel {
 public:
  virtual ~LanguageModel() = default;

  /// f32 logits (host, without padding) of the token after position `position` of the batch's first window. Waits, and
  /// leaves no trace in training.
  virtual std::vector<float> next_token_logits(const TokenBatch& batch, std::int64_t position) = 0;
};

}  // namespace ddptrain
