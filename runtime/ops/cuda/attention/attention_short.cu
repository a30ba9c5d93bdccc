#include "runtime/ops/cuda/attention/attention_short.cuh"

#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/attention/attention_kernels.h"

namespace ddptrain::cuda {

namespace {

using namespace attention_short;

int tiles_of(const AttentionShape& shape) { return static_cast<int>(ceil_div(shape.sequence, kTile)); }

std::size_t shared_bytes(const AttentionShape& shape) {
  return shape.head_size <= 64 ? Memory<64>::bytes(tiles_of(shape)) : Memory<128>::bytes(tiles_of(shape));
}

}  // namespace

bool suits_short_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors) {
  return shape.heads == shape.key_heads && suits_mma_attention(shape, tensors) && shape.sequence <= kMaxTiles * kTile &&
         shared_bytes(shape) <= shared_memory_limit();
}

void short_attention_backward(const AttentionShape& shape, const AttentionTensors& t, cudaStream_t stream) {
  const Pointers pointers{static_cast<const bf16*>(t.qkv), static_cast<const bf16*>(t.out), t.statistics,
                          static_cast<const bf16*>(t.d_output), static_cast<bf16*>(t.dqkv)};
  const auto kernel = shape.head_size <= 64 ? backward_kernel<64> : backward_kernel<128>;
  reserve_shared_memory(kernel, shared_bytes(shape));
  launch_kernel(kernel, attention::grid_of(shape, shape.heads, 1), 32 * tiles_of(shape), shared_bytes(shape), stream,
                pointers, attention::shape_of(shape));
}

}  // namespace ddptrain::cuda
