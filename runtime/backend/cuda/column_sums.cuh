#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/backend/cuda/cuda_utils.h"
#include "runtime/backend/cuda/elements.cuh"

/// Sums over the rows of a matrix whose elements are computed on the fly, in two stages of a fixed order: every block
/// adds up its rows, then the partial sums of all blocks are added. The result does not depend on scheduling.

namespace ddptrain::cuda {

inline constexpr std::uint32_t kColumnThreads = 256;
inline constexpr std::uint32_t kColumnBlocks = 512;

/// Floats of scratch memory that sum_matrix_columns needs.
inline std::size_t column_scratch(std::int64_t columns) { return static_cast<std::size_t>(columns) * kColumnBlocks; }

/// `width` (a power of two) threads side by side take V columns each.
template <int V, class Values>
__global__ void __launch_bounds__(kColumnThreads)
    column_partials(Values values, std::uint32_t rows, std::uint32_t columns, std::uint32_t width, float* partials) {
  __shared__ float shared[kColumnThreads * V];
  const std::uint32_t height = kColumnThreads / width;
  const std::uint32_t x = threadIdx.x % width;
  const std::uint32_t y = threadIdx.x / width;
  const std::uint32_t first_column = blockIdx.y * width * V;
  const std::uint32_t column = first_column + x * V;
  float sum[V] = {};
  if (column < columns) {
#pragma unroll 2
    for (std::uint32_t row = blockIdx.x * height + y; row < rows; row += gridDim.x * height) {
      float value[V];
      values(row, column, value);
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] += value[i];
    }
  }
#pragma unroll
  for (int i = 0; i < V; ++i) shared[threadIdx.x * V + i] = sum[i];
  __syncthreads();
  for (std::uint32_t c = threadIdx.x; c < width * V && first_column + c < columns; c += kColumnThreads) {
    float total = 0.0f;
    for (std::uint32_t i = 0; i < height; ++i) total += shared[i * width * V + c];
    partials[static_cast<std::size_t>(blockIdx.x) * columns + first_column + c] = total;
  }
}

inline constexpr std::uint32_t kTotalsWidth = 32;
inline constexpr std::uint32_t kTotalsHeight = 16;

template <class T>
__global__ void __launch_bounds__(kTotalsWidth* kTotalsHeight)
    column_totals(const float* partials, std::uint32_t blocks, std::uint32_t columns, bool accumulate, T* sums) {
  __shared__ float shared[kTotalsHeight][kTotalsWidth];
  const std::uint32_t column = blockIdx.x * kTotalsWidth + threadIdx.x;
  float sum = 0.0f;
  if (column < columns) {
#pragma unroll 4
    for (std::uint32_t block = threadIdx.y; block < blocks; block += kTotalsHeight) {
      sum += partials[static_cast<std::size_t>(block) * columns + column];
    }
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  float total = accumulate ? to_float(sums[column]) : 0.0f;
  for (std::uint32_t i = 0; i < kTotalsHeight; ++i) total += shared[i][threadIdx.x];
  sums[column] = from_float<T>(total);
}

/// sums (+)= column sums. `values(row, column, float (&value)[V])` gives V neighbouring elements of a row;
/// `columns` is a multiple of V. `partials`: column_scratch(columns) floats.
template <int V, class Values, class T>
void sum_matrix_columns(const Values& values, std::int64_t rows, std::int64_t columns, float* partials, bool accumulate,
                        T* sums, cudaStream_t stream) {
  const std::uint32_t groups = ceil_div(columns, V);
  std::uint32_t width = 1;
  while (width < groups && width < kColumnThreads) width *= 2;
  const std::uint32_t height = kColumnThreads / width;
  const std::uint32_t blocks = std::clamp<std::uint32_t>(ceil_div(rows, 4 * height), 1, kColumnBlocks);
  const dim3 grid(blocks, ceil_div(groups, width));
  column_partials<V><<<grid, kColumnThreads, 0, stream>>>(values, static_cast<std::uint32_t>(rows),
                                                          static_cast<std::uint32_t>(columns), width, partials);
  DDP_CUDA(cudaGetLastError());
  column_totals<T><<<ceil_div(columns, kTotalsWidth), dim3(kTotalsWidth, kTotalsHeight), 0, stream>>>(
      partials, blocks, static_cast<std::uint32_t>(columns), accumulate, sums);
  DDP_CUDA(cudaGetLastError());
}

}  // namespace ddptrain::cuda
