#include <algorithm>
#include <cmath>

#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/attention/attention_kernels.h"
#include "runtime/ops/cuda/attention/attention_wgmma.cuh"
#include "runtime/ops/cuda/ptx/tensor_map.h"

namespace ddptrain::cuda {

namespace {

using namespace attention_wgmma;

static_assert(sizeof(Shared) == kSharedBytes);

}  // namespace

bool suits_warpgroups(const AttentionTensors& t) {
  return is_aligned(t.qkv, 16) && is_aligned(t.out, 16) && is_aligned(t.d_output, 16) && is_aligned(t.statistics, 16) &&
         is_aligned(t.dqkv, 16);
}

void wgmma_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors, void* workspace,
                              int multiprocessors, cudaStream_t stream) {
  const std::int64_t rows = shape.batch * shape.sequence;
  const Maps maps{swizzled_tiles(tensors.qkv, rows, shape.columns(), kRows),
                  swizzled_tiles(tensors.out, rows, shape.width(), kRows),
                  swizzled_tiles(tensors.d_output, rows, shape.width(), kRows)};
  const std::size_t least = least_shared_bytes(shape.sequence);
  const std::size_t resident =
      std::min((shared_memory_limit() - least) / kSumBytes, static_cast<std::size_t>(shape.sequence / kRows));
  const Workspace memory(workspace, shape, multiprocessors);
  auto* const dqkv = static_cast<bf16*>(tensors.dqkv);
  const bool has_parts = shape.key_heads != shape.heads;
  bf16* const dkeys = has_parts ? static_cast<bf16*>(memory.parts) : dqkv + shape.width();
  const Problem problem{tensors.statistics,
                        reinterpret_cast<float4*>(memory.partial_dq),
                        dqkv,
                        dkeys,
                        dkeys + shape.width(),
                        static_cast<int>(has_parts ? 2 * shape.width() : shape.columns()),
                        static_cast<int>(shape.sequence),
                        static_cast<int>(shape.heads),
                        static_cast<int>(shape.key_heads),
                        static_cast<int>(shape.batch * shape.heads),
                        static_cast<int>(resident),
                        1.0f / std::sqrt(static_cast<float>(shape.head_size))};
  const std::size_t bytes = least + resident * kSumBytes;
  reserve_shared_memory(backward_kernel, bytes);
  launch_kernel(backward_kernel, grid(shape, multiprocessors), kThreads, bytes, stream, maps, problem);
  if (!has_parts) return;
  const std::int64_t packs = rows * 2 * shape.key_heads * kPacksOfHead;
  launch_kernel(sum_parts_kernel, ceil_div(packs, kSumThreads), kSumThreads, 0, stream, problem, packs);
}

}  // namespace ddptrain::cuda
