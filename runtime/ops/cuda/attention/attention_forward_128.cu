#include <algorithm>
#include <cmath>
#include <cstdint>

#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/attention/attention_forward_128.cuh"
#include "runtime/ops/cuda/attention/attention_kernels.h"
#include "runtime/ops/cuda/ptx/tensor_map.h"

namespace ddptrain::cuda {

namespace {

using namespace attention_forward_128;

static_assert(sizeof(Shared) == kSharedBytes);

}  // namespace

void wgmma_128_attention(const AttentionShape& shape, const AttentionTensors& tensors, int multiprocessors,
                         cudaStream_t stream) {
  const CUtensorMap qkv = swizzled_tiles(tensors.qkv, shape.batch * shape.sequence, shape.columns(), kRows);
  const Problem p{sizes_of(shape), static_cast<bf16*>(tensors.out), tensors.statistics,
                  1.0f / std::sqrt(static_cast<float>(shape.head_size))};
  reserve_shared_memory(forward_kernel, sizeof(Shared));
  launch_kernel(forward_kernel, std::min(multiprocessors, p.units()), kThreadsAndFetching, sizeof(Shared), stream, qkv,
                p);
}

}  // namespace ddptrain::cuda
