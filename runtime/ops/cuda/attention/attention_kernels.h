#pragma once

#include <cstddef>

#include "runtime/core/tensor.h"
#include "runtime/ops/cuda/attention/attention_plans.h"

namespace ddptrain::cuda {

/// deltas = d_output * out, summed over each head; f32, [batch, heads, sequence].
void attention_deltas(const AttentionShape& shape, const AttentionTensors& tensors, DType dtype, float* deltas,
                      cudaStream_t stream);

/// Attention in bf16 by warp-level matrix instructions: for sequences that are short or of awkward length. Head sizes
/// that are multiples of 8 up to 128; tensors aligned to 16 bytes.
bool suits_mma_attention(const AttentionShape& shape, const AttentionTensors& tensors);
void mma_attention(const AttentionShape& shape, const AttentionTensors& tensors, cudaStream_t stream);
/// `deltas`: what attention_deltas gives.
void mma_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors, const float* deltas,
                            cudaStream_t stream);

/// The backward pass in one kernel, which needs no deltas: shapes of mma_attention() up to sequences of 128, if heads
/// share no keys and one fits shared memory.
bool suits_short_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors);
void short_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors, cudaStream_t stream);

/// The backward pass by warpgroup matrix instructions: heads of 64, sequences that are multiples of 128. One thread
/// block takes a whole head, so a GPU is filled by as many heads as it has multiprocessors.
bool suits_wgmma_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors);
/// Bytes. `multiprocessors`: as many as may work at a time.
std::size_t wgmma_attention_backward_workspace(const AttentionShape& shape, int multiprocessors);
/// The same bits again, whatever `multiprocessors` is. Does not need the deltas.
void wgmma_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors, void* workspace,
                              int multiprocessors, cudaStream_t stream);

struct Multiprocessors {
  int all;   ///< Of the GPU. Sums are split by it, so bits depend on it.
  int free;  ///< That may work at a time. Bits do not depend on it.
};

/// The same with heads of 128, which may share keys. True if the shape suits, batch * heads * sequence / 128 is at
/// least `multiprocessors` (all of the GPU), and the gradients of the scores take at most 2 GiB.
bool suits_wgmma_128_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors,
                                        int multiprocessors);
/// Bytes, for the deltas (f32), the gradients of the scores (bf16, about sequence^2 bytes for each head), and parts of
/// dk and dv.
std::size_t wgmma_128_attention_backward_workspace(const AttentionShape& shape, int multiprocessors);
/// For shapes that suit. The caller keeps `workspace` until the work on `stream` has ended.
void wgmma_128_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors, void* workspace,
                                  const Multiprocessors& multiprocessors, cudaStream_t stream);

/// Attention without tensor cores, for f32 and for shapes that AttentionPlans does not do; any sequence, head sizes up
/// to kMaxHeadSize.
inline constexpr std::int64_t kMaxHeadSize = 256;

void plain_attention(const AttentionShape& shape, const AttentionTensors& tensors, DType dtype, cudaStream_t stream);
void plain_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors, DType dtype,
                              const float* deltas, cudaStream_t stream);

}  // namespace ddptrain::cuda
