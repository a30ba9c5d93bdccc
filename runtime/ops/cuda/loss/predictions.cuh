#pragma once

#include <cstdint>

#include "runtime/ops/token_batch.h"

namespace ddptrain::cuda {

/// Loss and hits of the rows that one block took.
struct MetricPartial {
  double loss;
  std::uint32_t correct;
};

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

/// Targets that are among the columns of this rank. Others have a column that does not exist.
struct SliceTargets {
  Predictions predictions;

  __device__ __forceinline__ std::uint32_t target(std::uint32_t row) const {
    return predictions.batch.vocabulary_slice.row(predictions.target(row));
  }
};

}  // namespace ddptrain::cuda
