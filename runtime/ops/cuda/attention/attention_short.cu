#include "runtime/ops/cuda/attention/attention_short.cuh"

#include "runtime/device/cuda/elements.cuh"
#include "runtime/ops/cuda/attention/attention_kernels.h"

namespace ddptrain::cuda {

namespace {

using namespace attention_short;

int tiles_of(const AttentionShape& shape) { return static_cast<int>(ceil_div(shape.sequence, kTile)); }

std::size_t shared_bytes(const AttentionShape& shape) {
  return shape.head_size <= 64 ? Memory<64>::bytes(tiles_of(shape)) : Memory<128>::bytes(tiles_of(shape));
}

template <int kHead>
void launch(const AttentionShape& s, const AttentionTensors& t, cudaStream_t stream) {
  require(s.batch * s.heads <= 65535, "attention: more than 65,535 heads in a batch");
  const Pointers pointers{static_cast<const bf16*>(t.qkv), static_cast<const bf16*>(t.out),
                          static_cast<const bf16*>(t.dout), t.statistics, static_cast<bf16*>(t.dqkv)};
  const dim3 grid(1, static_cast<unsigned>(s.batch * s.heads));
  const std::size_t bytes = shared_bytes(s);
  reserve_shared_memory(backward_kernel<kHead>, bytes);
  backward_kernel<kHead><<<grid, 32 * tiles_of(s), bytes, stream>>>(pointers, attention::shape_of(s));
  DDP_CUDA(cudaGetLastError());
}

}  // namespace

bool suits_short_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors) {
  return suits_mma_attention(shape, tensors) && shape.sequence <= kMaxTiles * kTile &&
         shared_bytes(shape) <= shared_memory_limit();
}

void short_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors, cudaStream_t stream) {
  return shape.head_size <= 64 ? launch<64>(shape, tensors, stream) : launch<128>(shape, tensors, stream);
}

}  // namespace ddptrain::cuda
