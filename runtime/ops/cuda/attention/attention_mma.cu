#include "runtime/ops/cuda/attention/attention_mma.cuh"

#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/attention/attention_kernels.h"

namespace ddptrain::cuda {

namespace {

using namespace attention_mma;

/// `heads`: of queries or keys, in each sample. A block holds `own_tensors` tensors of its own rows and two tiles.
template <class Kernel>
void launch(Kernel kernel, int head, std::int64_t heads, int own_tensors, const AttentionShape& s,
            const AttentionTensors& t, const float* deltas, cudaStream_t stream) {
  const Grid of_head(static_cast<int>(s.sequence));
  const std::size_t bytes = sizeof(bf16) * (own_tensors * of_head.warps * kOwn + 2 * kOther) * (head + 8);
  const Pointers pointers{static_cast<const bf16*>(t.qkv),      static_cast<bf16*>(t.out),  t.statistics,
                          static_cast<const bf16*>(t.d_output), static_cast<bf16*>(t.dqkv), deltas};
  reserve_shared_memory(kernel, bytes);
  launch_kernel(kernel, attention::grid_of(s, heads, of_head.blocks), 32 * of_head.warps, bytes, stream, pointers,
                attention::shape_of(s));
}

}  // namespace

bool suits_mma_attention(const AttentionShape& shape, const AttentionTensors& t) {
  return shape.head_size % 8 == 0 && shape.head_size <= 128 && is_aligned(t.qkv, 16) && is_aligned(t.out, 16) &&
         is_aligned(t.d_output, 16) && is_aligned(t.dqkv, 16);
}

void mma_attention(const AttentionShape& shape, const AttentionTensors& tensors, cudaStream_t stream) {
  attention::with_head<32, 128>(shape.head_size, [&](auto head) {
    launch(forward_kernel<head.value>, head.value, shape.heads, 1, shape, tensors, nullptr, stream);
  });
}

void mma_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors, const float* deltas,
                            cudaStream_t stream) {
  attention::with_head<32, 128>(shape.head_size, [&](auto head) {
    launch(dq_kernel<head.value>, head.value, shape.heads, 2, shape, tensors, deltas, stream);
    launch(dkv_kernel<head.value>, head.value, shape.key_heads, 2, shape, tensors, deltas, stream);
  });
}

}  // namespace ddptrain::cuda
