#include "runtime/ops/cuda/gemm/gelu_product.h"

#include <array>

#include "runtime/ops/cuda/column_sums.cuh"
#include "runtime/ops/cuda/gemm/gelu_product.cuh"
#include "runtime/ops/cuda/gemm/tile_launch.cuh"

namespace ddptrain::cuda {

namespace {

using namespace gelu_product;

template <Pass kPass>
void launch(const Maps& maps, const Problem& p, int clusters, cudaStream_t stream) {
  launch_tiles(gelu_product_kernel<kPass>, maps, p, clusters, Roles<kFinishers<kPass>>::kThreads,
               sizeof(SharedOf<kPass>), stream);
}

}  // namespace

bool try_linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& pre, const Tensor& y,
                     int clusters, cudaStream_t stream) {
  const std::int64_t rows = x.dim(0), depth = x.dim(1), hidden = y.dim(1);
  if (!suits(rows, hidden, depth, clusters, sizeof(ForwardShared), {x, weight, bias, pre, y})) return false;
  if (hidden > kMostHidden) return false;
  const Maps maps{swizzled_tiles(x.data, rows, depth, kRows), swizzled_tiles(weight.data, hidden, depth, kRows)};
  const Problem problem{.bias = bias.as<const bf16>(),
                        .pre = pre.as<bf16>(),
                        .result = y.as<bf16>(),
                        .sums = nullptr,
                        .rows = static_cast<int>(rows),
                        .hidden = static_cast<int>(hidden),
                        .tiles = tiles_of(rows, hidden, depth, kColumns)};
  launch<Pass::forward>(maps, problem, clusters, stream);
  return true;
}

bool try_linear_gelu_backward(const Tensor& weight, const Tensor& dy, const Tensor& pre, const Tensor& dpre,
                              const Tensor& dbias, bool accumulate, int clusters, Scratch& scratch,
                              cudaStream_t stream) {
  const std::int64_t rows = dy.dim(0), depth = dy.dim(1), hidden = weight.dim(1);
  if (!suits(rows, hidden, depth, clusters, sizeof(BackwardShared), {weight, dy, pre, dpre})) return false;
  const Maps maps{swizzled_tiles(dy.data, rows, depth, kRows), swizzled_tiles(weight.data, depth, hidden, kDepth)};
  const Tiles tiles = tiles_of(rows, hidden, depth, kColumns);
  const auto rows_of_tiles = static_cast<std::uint32_t>(kCluster * tiles.pairs);
  auto* const sums = scratch.reserve_elements<float>(static_cast<std::size_t>(rows_of_tiles * hidden), stream);
  const Problem problem{.bias = nullptr,
                        .pre = pre.as<bf16>(),
                        .result = dpre.as<bf16>(),
                        .sums = sums,
                        .rows = static_cast<int>(rows),
                        .hidden = static_cast<int>(hidden),
                        .tiles = tiles};
  launch<Pass::backward>(maps, problem, clusters, stream);
  add_column_partials(sums, rows_of_tiles, hidden, accumulate, std::array{dbias}, stream);
  return true;
}

}  // namespace ddptrain::cuda
