#pragma once

#include "runtime/ops/token_batch.h"

namespace ddptrain::cuda {

/// Targets of rows of logits: the tokens that follow the tokens of a batch, from its prediction `first` on.
struct Predictions {
  TokenBatch batch;
  std::uint32_t first;

  __device__ __forceinline__ std::uint32_t target(std::uint32_t row) const {
    const std::uint32_t sequence = batch.source.sequence;
    const std::uint32_t window = BatchRows(batch.order, batch.step)[(first + row) / sequence];
    return batch.source.token(window, (first + row) % sequence + 1);
  }
};

}  // namespace ddptrain::cuda
