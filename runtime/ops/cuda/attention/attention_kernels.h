#pragma once

#include <cstddef>
#include <cstdint>

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

/// The backward pass in one kernel, which needs no deltas, for tensors of mma_attention(). Shapes: see
/// suits_short_attention().
void short_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors, cudaStream_t stream);

/// Whether the kernels below can read and write the tensors, which are aligned to 16 bytes. Shapes: see
/// plan_attention_forward() and plan_attention_backward().
bool suits_warpgroups(const AttentionTensors& tensors);

/// The forward pass by warpgroup matrix instructions: AttentionKernels::heads_of_128. The same bits, whatever
/// `multiprocessors` is: the number that may work at a time.
void wgmma_128_attention(const AttentionShape& shape, const AttentionTensors& tensors, int multiprocessors,
                         cudaStream_t stream);

/// The backward pass by warpgroup matrix instructions: AttentionKernels::heads_of_64. `workspace` has the bytes of the
/// plan, and the caller keeps it until the work on `stream` has ended. `multiprocessors`: as many as may work at a
/// time. The same bits again, whatever that number is. Does not need the deltas.
void wgmma_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors, void* workspace,
                              int multiprocessors, cudaStream_t stream);
/// The same for AttentionKernels::heads_of_128. `parts` is the plan's.
void wgmma_128_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors, int parts,
                                  void* workspace, int multiprocessors, cudaStream_t stream);

/// Attention without tensor cores, for f32 and for shapes that AttentionPlans does not do; any sequence, head sizes up
/// to kMaxHeadSize.
inline constexpr std::int64_t kMaxHeadSize = 256;

void plain_attention(const AttentionShape& shape, const AttentionTensors& tensors, DType dtype, cudaStream_t stream);
void plain_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors, DType dtype,
                              const float* deltas, cudaStream_t stream);

}  // namespace ddptrain::cuda
