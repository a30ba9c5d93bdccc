#include "runtime/ops/cuda/attention/attention_mma.cuh"

#include <type_traits>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/ops/cuda/attention/attention_kernels.h"

namespace ddptrain::cuda {

namespace {

using namespace attention_mma;

template <class Work>
void with_head(std::int64_t head_size, Work&& work) {
  if (head_size <= 32) return work(std::integral_constant<int, 32>{});
  if (head_size <= 64) return work(std::integral_constant<int, 64>{});
  return work(std::integral_constant<int, 128>{});
}

/// A block holds `own_tensors` tensors of its own rows and two tiles.
template <class Kernel>
void launch(Kernel kernel, int head, int own_tensors, const AttentionShape& s, const AttentionTensors& t,
            const float* deltas, cudaStream_t stream) {
  require(s.batch * s.heads <= 65535, "attention: more than 65,535 heads in a batch");
  const Grid of_head(static_cast<int>(s.sequence));
  const std::size_t bytes = sizeof(bf16) * (own_tensors * of_head.warps * kOwn + 2 * kOther) * (head + 8);
  const dim3 grid(static_cast<unsigned>(of_head.blocks), static_cast<unsigned>(s.batch * s.heads));
  const Pointers pointers{static_cast<const bf16*>(t.qkv),  static_cast<bf16*>(t.out),  t.statistics,
                          static_cast<const bf16*>(t.dout), static_cast<bf16*>(t.dqkv), deltas};
  const Shape shape = attention::shape_of(s);
  reserve_shared_memory(kernel, bytes);
  kernel<<<grid, 32 * of_head.warps, bytes, stream>>>(pointers, shape);
  DDP_CUDA(cudaGetLastError());
}

}  // namespace

bool suits_mma_attention(const AttentionShape& shape, const AttentionTensors& t) {
  return shape.head_size % 8 == 0 && shape.head_size <= 128 && is_aligned(t.qkv, 16) && is_aligned(t.out, 16) &&
         is_aligned(t.dout, 16) && is_aligned(t.dqkv, 16);
}

void mma_attention(const AttentionShape& shape, const AttentionTensors& tensors, cudaStream_t stream) {
  with_head(shape.head_size,
            [&](auto head) { launch(forward_kernel<head.value>, head.value, 1, shape, tensors, nullptr, stream); });
}

void mma_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors, const float* deltas,
                            cudaStream_t stream) {
  with_head(shape.head_size, [&](auto head) {
    launch(dq_kernel<head.value>, head.value, 2, shape, tensors, deltas, stream);
    launch(dkv_kernel<head.value>, head.value, 2, shape, tensors, deltas, stream);
  });
}

}  // namespace ddptrain::cuda
