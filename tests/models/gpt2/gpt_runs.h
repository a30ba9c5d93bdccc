#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "models/decoder/decoder.h"
#include "models/gpt2/gpt2.h"
#include "tests/models/model_run.h"
#include "tests/ops/token_batches.h"

/// What the tests of GPT share.

namespace ddptrain::tests {

inline constexpr std::int64_t kBatch = 4;

using Gradients = std::map<std::string, Values>;

inline DecoderOptions make_options(const Gpt2Shape& shape, float dropout = 0.0f,
                                   Recompute recompute = Recompute::none) {
  DecoderOptions options;
  options.table = gpt2_table(shape);
  options.max_batch = kBatch;
  options.seed = 99;
  options.dropout = dropout;
  options.recompute = recompute;
  return options;
}

/// A GPT that trains on `train` and is evaluated on `validation`.
inline BoundModel bind_gpt(Device& device, const DecoderOptions& options, const TokenBatch& train,
                           const TokenBatch& validation) {
  return {make_decoder(device, options, {train.source, validation.source}), train};
}

}  // namespace ddptrain::tests
