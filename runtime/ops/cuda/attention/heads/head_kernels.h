#pragma once

#include <cstdint>

#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/ops/shapes.h"

namespace ddptrain::cuda {

// What is done to heads of queries and keys before attention: see GroupedAttentionOps, whose tensors these are.

/// `frequencies` may be null: heads are not turned. `first_position` is in memory of the device; null: 0.
void rotate_heads(const AttentionShape& shape, const Tensor& qkv, const float* frequencies,
                  const std::int64_t* first_position, bool forward, cudaStream_t stream);

/// What both passes of the norms of heads read.
struct HeadNorms {
  AttentionShape shape;
  Tensor qkv;
  Tensor query_weight;
  Tensor key_weight;
  float* statistics;  ///< Which the forward pass writes.
};
void normalise_heads(const HeadNorms& norms, float epsilon, const Tensor& y, cudaStream_t stream);
void normalise_heads_backward(const HeadNorms& norms, const Tensor& dqkv, const Tensor& dquery_weight,
                              const Tensor& dkey_weight, bool accumulate, Scratch& scratch, cudaStream_t stream);

}  // namespace ddptrain::cuda
