#include "runtime/ops/cuda/gemm/swiglu_product.h"

#include "runtime/ops/cuda/gemm/swiglu_product.cuh"
#include "runtime/ops/cuda/gemm/tile_launch.cuh"

namespace ddptrain::cuda {

namespace {

using namespace swiglu_product;

template <Pass kPass, int kFinishers>
void launch(const Maps& maps, Problem p, std::int64_t depth, int clusters, cudaStream_t stream) {
  p.tiles = tiles_of(p.rows, p.hidden, depth, kHiddenOfTile<kPass>);
  launch_tiles(swiglu_product_kernel<kPass, kFinishers>, maps, p, clusters, Roles<kFinishers>::kThreads, sizeof(Shared),
               stream);
}

}  // namespace

bool try_linear_swiglu(const Tensor& x, const Tensor& weight, const Tensor& pre, const Tensor& y, int clusters,
                       cudaStream_t stream) {
  const std::int64_t rows = x.dim(0), depth = x.dim(1), hidden = y.dim(1);
  if (!suits(rows, hidden, depth, clusters, sizeof(Shared), {x, weight, pre, y})) return false;
  const Maps maps{swizzled_tiles(x.data, rows, depth, kRows), swizzled_tiles(weight.data, 2 * hidden, depth, kRows)};
  const Problem problem{.pre = nullptr,
                        .result = pre.as<bf16>(),
                        .y = y.as<bf16>(),
                        .rows = static_cast<int>(rows),
                        .hidden = static_cast<int>(hidden)};
  launch<Pass::forward, 3>(maps, problem, depth, clusters, stream);
  return true;
}

bool try_linear_swiglu_backward(const Tensor& weight, const Tensor& dy, const Tensor& pre, const Tensor& dpre,
                                const Tensor& y, FinishingWarps warps, int clusters, cudaStream_t stream) {
  const std::int64_t rows = dy.dim(0), depth = dy.dim(1), hidden = weight.dim(1);
  if (!suits(rows, hidden, depth, clusters, sizeof(Shared), {weight, dy, pre, dpre, y ? y : dpre})) return false;
  const Maps maps{swizzled_tiles(dy.data, rows, depth, kRows), swizzled_tiles(weight.data, depth, hidden, kDepth)};
  const Problem problem{.pre = pre.as<bf16>(),
                        .result = dpre.as<bf16>(),
                        .y = y.as<bf16>(),
                        .rows = static_cast<int>(rows),
                        .hidden = static_cast<int>(hidden)};
  const bool three = warps == FinishingWarps::three;
  const auto launch_pass = y ? (three ? launch<Pass::backward_again, 3> : launch<Pass::backward_again, 7>)
                             : (three ? launch<Pass::backward, 3> : launch<Pass::backward, 7>);
  launch_pass(maps, problem, depth, clusters, stream);
  return true;
}

}  // namespace ddptrain::cuda
