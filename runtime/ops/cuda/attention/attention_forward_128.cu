#include <algorithm>
#include <cmath>
#include <cstdint>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/attention/attention_forward_128.cuh"
#include "runtime/ops/cuda/attention/attention_kernels.h"
#include "runtime/ops/cuda/ptx/tensor_map.h"

namespace ddptrain::cuda {

namespace {

using namespace attention_forward_128;

/// Keys and values that stay in Hopper's L2 cache. Thread blocks compute the last queries of all samples first, so they
/// read each key as often as there are blocks of queries after it, far apart in time.
constexpr std::int64_t kMostKeyBytes = std::int64_t{32} << 20;
/// Heads that share a key and read it at about the same time: then memory is fast enough for any number of keys.
constexpr std::int64_t kEnoughQueries = 4;

bool reads_keys_fast(const AttentionShape& shape) {
  return shape.heads / shape.key_heads >= kEnoughQueries ||
         2 * shape.batch * shape.sequence * shape.key_width() * std::int64_t{sizeof(bf16)} <= kMostKeyBytes;
}

}  // namespace

bool suits_wgmma_128_attention(const AttentionShape& shape, const AttentionTensors& tensors) {
  return multiplies_by_warpgroups() && shape.head_size == kHead && shape.sequence % kKeys == 0 &&
         reads_keys_fast(shape) && shape.batch * shape.sequence * shape.columns() < (std::int64_t{1} << 34) &&
         sizeof(Shared) <= shared_memory_limit() && is_aligned(tensors.qkv, 16) && is_aligned(tensors.out, 16);
}

void wgmma_128_attention(const AttentionShape& shape, const AttentionTensors& tensors, ProductOrder order,
                         int multiprocessors, cudaStream_t stream) {
  const CUtensorMap qkv = swizzled_tiles(tensors.qkv, shape.batch * shape.sequence, shape.columns(), kRows);
  const Problem p{sizes_of(shape), static_cast<bf16*>(tensors.out), tensors.statistics,
                  1.0f / std::sqrt(static_cast<float>(shape.head_size))};
  const auto kernel = order == ProductOrder::turns ? forward_kernel<true> : forward_kernel<false>;
  reserve_shared_memory(kernel, sizeof(Shared));
  launch_kernel(kernel, std::min(multiprocessors, p.units()), kThreadsAndFetching, sizeof(Shared), stream, qkv, p);
}

}  // namespace ddptrain::cuda
