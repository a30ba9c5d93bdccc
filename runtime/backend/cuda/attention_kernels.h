#pragma once

#include "runtime/backend/cuda/attention_plans.h"
#include "runtime/core/tensor.h"

namespace ddptrain::cuda {

/// Attention without tensor cores, for f32 and for shapes that AttentionPlans does not do; any sequence, head sizes up
/// to kMaxHeadSize.
inline constexpr std::int64_t kMaxHeadSize = 256;

void plain_attention(const AttentionShape& shape, const AttentionTensors& tensors, DType dtype, cudaStream_t stream);
/// `deltas`: f32 scratch, [batch, heads, sequence].
void plain_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors, DType dtype, float* deltas,
                              cudaStream_t stream);

}  // namespace ddptrain::cuda
