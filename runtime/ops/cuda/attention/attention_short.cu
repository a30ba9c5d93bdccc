#include "runtime/ops/cuda/attention/attention_short.cuh"

#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/attention/attention_kernels.h"

namespace ddptrain::cuda {

namespace {

using namespace attention_short;

}  // namespace

void short_attention_backward(const AttentionShape& shape, const AttentionTensors& t, cudaStream_t stream) {
  const Pointers pointers{static_cast<const bf16*>(t.qkv), static_cast<const bf16*>(t.out), t.statistics,
                          static_cast<const bf16*>(t.d_output), static_cast<bf16*>(t.dqkv)};
  const auto kernel = columns_of(shape.head_size) == 64 ? backward_kernel<64> : backward_kernel<kMostHead>;
  const int tiles = tiles_of(shape.sequence);
  const std::size_t bytes = shared_bytes(tiles, columns_of(shape.head_size));
  reserve_shared_memory(kernel, bytes);
  launch_kernel(kernel, attention::grid_of(shape, shape.heads, 1), 32 * tiles, bytes, stream, pointers,
                attention::shape_of(shape));
}

}  // namespace ddptrain::cuda
