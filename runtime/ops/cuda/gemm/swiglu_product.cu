#include "runtime/ops/cuda/gemm/swiglu_product.h"

#include <algorithm>

#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/gemm/swiglu_product.cuh"
#include "runtime/ops/cuda/ptx/tensor_map.h"

namespace ddptrain::cuda {

namespace {

using namespace swiglu_product;

bool suits(std::int64_t rows, std::int64_t hidden, std::int64_t depth, int clusters,
           std::initializer_list<Tensor> tensors) {
  return multiplies_by_warpgroups() && clusters > 0 && sizeof(Shared) <= shared_memory_limit() && rows > 0 &&
         hidden > 0 && depth > 0 && hidden % kPieceColumns == 0 && depth % kDepth == 0 &&
         std::ranges::all_of(
             tensors, [](const Tensor& tensor) { return tensor.dtype == DType::bf16 && is_aligned(tensor.data, 16); });
}

template <Pass kPass, int kFinishers>
void launch(const Maps& maps, Problem p, int clusters, cudaStream_t stream) {
  p.columns = static_cast<int>(ceil_div(p.hidden, kHiddenOfTile<kPass>));
  p.pairs = static_cast<int>(ceil_div(p.rows, kCluster * kRows));
  p.tiles = p.columns * p.pairs;
  const auto kernel = swiglu_product_kernel<kPass, kFinishers>;
  reserve_shared_memory(kernel, sizeof(Shared));
  const auto used = static_cast<unsigned>(std::min(p.tiles, clusters));
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(used * kCluster);
  config.blockDim = dim3(static_cast<unsigned>(threads_of_block(kFinishers)));
  config.dynamicSmemBytes = sizeof(Shared);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  DDP_CUDA(cudaLaunchKernelEx(&config, kernel, maps, p));
}

}  // namespace

bool try_linear_swiglu(const Tensor& x, const Tensor& weight, const Tensor& pre, const Tensor& y, int clusters,
                       cudaStream_t stream) {
  const std::int64_t rows = x.dim(0), depth = x.dim(1), hidden = y.dim(1);
  if (!suits(rows, hidden, depth, clusters, {x, weight, pre, y})) return false;
  const Maps maps{swizzled_tiles(x.data, rows, depth, kRows), swizzled_tiles(weight.data, 2 * hidden, depth, kRows)};
  const Problem problem{.pre = nullptr,
                        .result = pre.as<bf16>(),
                        .y = y.as<bf16>(),
                        .rows = static_cast<int>(rows),
                        .hidden = static_cast<int>(hidden),
                        .depth = static_cast<int>(depth)};
  launch<Pass::forward, 3>(maps, problem, clusters, stream);
  return true;
}

bool try_linear_swiglu_backward(const Tensor& weight, const Tensor& dy, const Tensor& pre, const Tensor& dpre,
                                const Tensor& y, FinishingWarps warps, int clusters, cudaStream_t stream) {
  const std::int64_t rows = dy.dim(0), depth = dy.dim(1), hidden = weight.dim(1);
  if (!suits(rows, hidden, depth, clusters, {weight, dy, pre, dpre, y ? y : dpre})) return false;
  const Maps maps{swizzled_tiles(dy.data, rows, depth, kRows), swizzled_tiles(weight.data, depth, hidden, kDepth)};
  const Problem problem{.pre = pre.as<bf16>(),
                        .result = dpre.as<bf16>(),
                        .y = y.as<bf16>(),
                        .rows = static_cast<int>(rows),
                        .hidden = static_cast<int>(hidden),
                        .depth = static_cast<int>(depth)};
  const bool three = warps == FinishingWarps::three;
  const auto launch_pass = y ? (three ? launch<Pass::backward_again, 3> : launch<Pass::backward_again, 7>)
                             : (three ? launch<Pass::backward, 3> : launch<Pass::backward, 7>);
  launch_pass(maps, problem, clusters, stream);
  return true;
}

}  // namespace ddptrain::cuda
