#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "runtime/core/tensor.h"
#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/gemm/tile_product.cuh"
#include "runtime/ops/cuda/ptx/tensor_map.h"

/// How kernels of tile_product.cuh are launched.

namespace ddptrain::cuda::tile_product {

/// Whether GPU and tensors suit a product whose result has `columns` columns and whose sums have `depth` terms.
inline bool suits(std::int64_t rows, std::int64_t columns, std::int64_t depth, int clusters, std::size_t shared_bytes,
                  std::initializer_list<Tensor> tensors) {
  return multiplies_by_warpgroups() && clusters > 0 && shared_bytes <= shared_memory_limit() && rows > 0 &&
         columns > 0 && depth > 0 && columns % kPieceColumns == 0 && depth % kDepth == 0 &&
         std::ranges::all_of(
             tensors, [](const Tensor& tensor) { return tensor.dtype == DType::bf16 && is_aligned(tensor.data, 16); });
}

/// `columns`: those of `hidden` in a tile.
inline Tiles tiles_of(std::int64_t rows, std::int64_t hidden, std::int64_t depth, int columns) {
  const auto beside = static_cast<int>(ceil_div(hidden, columns));
  const auto pairs = static_cast<int>(ceil_div(rows, kCluster * kRows));
  return {static_cast<int>(depth), beside, pairs, beside * pairs};
}

/// `clusters`: the most.
template <class Problem>
void launch_tiles(void (*kernel)(Maps, Problem), const Maps& maps, const Problem& problem, int clusters, int threads,
                  std::size_t shared_bytes, cudaStream_t stream) {
  reserve_shared_memory(kernel, shared_bytes);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(std::min(problem.tiles.count, clusters) * kCluster));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  DDP_CUDA(cudaLaunchKernelEx(&config, kernel, maps, problem));
}

}  // namespace ddptrain::cuda::tile_product
