#include <algorithm>
#include <cmath>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/attention/attention_kernels.h"
#include "runtime/ops/cuda/attention/attention_wgmma.cuh"
#include "runtime/ops/cuda/ptx/tensor_map.h"

namespace ddptrain::cuda {

namespace {

using namespace attention_wgmma;

std::size_t least_shared_bytes(std::int64_t sequence) {
  return sizeof(Shared) + static_cast<std::size_t>(sequence) * sizeof(float);
}

std::int64_t grid(const AttentionShape& shape, int multiprocessors) {
  return std::min<std::int64_t>(multiprocessors, shape.batch * shape.heads);
}

}  // namespace

bool suits_wgmma_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors) {
  return multiplies_by_warpgroups() && shape.head_size == kHead && shape.key_heads == shape.heads &&
         shape.sequence % kKeys == 0 && shape.batch * shape.sequence < (std::int64_t{1} << 31) &&
         least_shared_bytes(shape.sequence) <= shared_memory_limit() && is_aligned(tensors.qkv, 16) &&
         is_aligned(tensors.out, 16) && is_aligned(tensors.d_output, 16) && is_aligned(tensors.statistics, 16) &&
         is_aligned(tensors.dqkv, 16);
}

std::size_t wgmma_attention_backward_workspace(const AttentionShape& shape, int multiprocessors) {
  return static_cast<std::size_t>(grid(shape, multiprocessors) * shape.sequence * kHead) * sizeof(float);
}

void wgmma_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors, void* workspace,
                              int multiprocessors, cudaStream_t stream) {
  const std::int64_t rows = shape.batch * shape.sequence;
  const Maps maps{swizzled_tiles(tensors.qkv, rows, 3 * shape.width(), kRows),
                  swizzled_tiles(tensors.out, rows, shape.width(), kRows),
                  swizzled_tiles(tensors.d_output, rows, shape.width(), kRows)};
  const std::size_t least = least_shared_bytes(shape.sequence);
  const std::size_t resident =
      std::min((shared_memory_limit() - least) / kSumBytes, static_cast<std::size_t>(shape.sequence / kRows));
  const Problem problem{tensors.statistics,
                        static_cast<float4*>(workspace),
                        static_cast<bf16*>(tensors.dqkv),
                        static_cast<int>(shape.sequence),
                        static_cast<int>(shape.heads),
                        static_cast<int>(shape.batch * shape.heads),
                        static_cast<int>(resident),
                        1.0f / std::sqrt(static_cast<float>(shape.head_size))};
  const std::size_t bytes = least + resident * kSumBytes;
  reserve_shared_memory(backward_kernel, bytes);
  launch_kernel(backward_kernel, grid(shape, multiprocessors), kThreads, bytes, stream, maps, problem);
}

}  // namespace ddptrain::cuda
