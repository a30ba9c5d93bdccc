#include <algorithm>
#include <cmath>
#include <cstdint>

#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/attention/attention_kernels.h"
#include "runtime/ops/cuda/attention/attention_wgmma_128.cuh"
#include "runtime/ops/cuda/ptx/tensor_map.h"

namespace ddptrain::cuda {

namespace {

using namespace attention_wgmma_128;

static_assert(sizeof(KeysShared) == kSharedBytes);

}  // namespace

void wgmma_128_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors, int parts,
                                  void* workspace, int multiprocessors, cudaStream_t stream) {
  const std::int64_t rows = shape.batch * shape.sequence;
  const Maps maps{swizzled_tiles(tensors.qkv, rows, shape.columns(), kRows),
                  swizzled_tiles(tensors.d_output, rows, shape.width(), kRows)};
  Problem p{sizes_of(shape)};
  p.parts = parts;
  p.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_size));
  const Workspace memory(workspace, {p, parts});
  launch_kernel(deltas_kernel, ceil_div(rows * shape.heads, kDeltasOfBlock), kDeltaThreads, 0, stream,
                static_cast<const bf16*>(tensors.out), static_cast<const bf16*>(tensors.d_output), memory.deltas, p);
  p.statistics = tensors.statistics;
  p.deltas = memory.deltas;
  p.dscores = memory.dscores;
  p.dqkv = static_cast<bf16*>(tensors.dqkv);
  p.dkeys = p.parts > 1 ? static_cast<bf16*>(memory.parts) : p.dqkv + shape.width();
  p.dvalues = p.dkeys + static_cast<std::ptrdiff_t>(p.key_heads) * p.parts * kHead;
  p.dkeys_row = p.parts > 1 ? 2 * p.key_heads * p.parts * kHead : static_cast<int>(shape.columns());
  reserve_shared_memory(keys_kernel, sizeof(KeysShared));
  launch_kernel(keys_kernel, std::min(multiprocessors, units_of(p)), kThreadsAndFetching, sizeof(KeysShared), stream,
                maps, p);
  reserve_shared_memory(queries_kernel, sizeof(QueriesShared));
  launch_kernel(queries_kernel, p.batch * p.heads * p.blocks(), kThreads, sizeof(QueriesShared), stream, maps, p);
  if (p.parts == 1) return;
  const std::int64_t packs = rows * 2 * shape.key_heads * kPacksOfHead;
  launch_kernel(sum_parts_kernel, ceil_div(packs, kSumThreads), kSumThreads, 0, stream, p, packs);
}

}  // namespace ddptrain::cuda
