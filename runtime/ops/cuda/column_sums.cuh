#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"

/// Sums over the rows of a matrix whose elements are computed on the fly, in two stages of a fixed order: every block
/// adds up its rows, then the partial sums of all blocks are added. The result does not depend on scheduling.

namespace ddptrain::cuda {

inline constexpr std::uint32_t kColumnThreads = 256;
inline constexpr std::uint32_t kColumnBlocks = 512;
inline constexpr std::uint32_t kColumnWidth = 32;                // threads side by side at most: a warp reads one row
inline constexpr std::uint32_t kResidentColumnBlocks = 132 * 6;  // that run at once

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
#pragma unroll 4
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
  let_successor_start();
}

inline constexpr std::uint32_t kTotalsWidth = 32;
inline constexpr std::uint32_t kTotalsHeight = 16;

template <class T, std::size_t N>
struct ColumnSums {
  T* of[N];
};

/// of[i] (+)= column sums of partials[i], i < N; partials [N, blocks, columns].
template <class T, std::size_t N>
__global__ void __launch_bounds__(kTotalsWidth* kTotalsHeight)
    column_totals(const float* partials, std::uint32_t blocks, std::uint32_t columns, bool accumulate,
                  ColumnSums<T, N> all) {
  __shared__ float shared[kTotalsHeight][kTotalsWidth];
  const std::uint32_t groups = gridDim.x / N;
  const std::uint32_t x = threadIdx.x % kTotalsWidth, y = threadIdx.x / kTotalsWidth;
  const std::uint32_t column = blockIdx.x % groups * kTotalsWidth + x;
  partials += static_cast<std::size_t>(blockIdx.x / groups) * blocks * columns;
  T* sums = all.of[0];
#pragma unroll
  for (std::size_t i = 1; i < N; ++i) sums = blockIdx.x / groups == i ? all.of[i] : sums;
  wait_for_predecessor();
  let_successor_start();
  float sum = 0.0f;
  if (column < columns) {
#pragma unroll 8
    for (std::uint32_t block = y; block < blocks; block += kTotalsHeight) {
      sum += partials[static_cast<std::size_t>(block) * columns + column];
    }
  }
  shared[y][x] = sum;
  __syncthreads();
  if (y != 0 || column >= columns) return;
  float total = accumulate ? to_float(sums[column]) : 0.0f;
  for (std::uint32_t i = 0; i < kTotalsHeight; ++i) total += shared[i][x];
  sums[column] = from_float<T>(total);
}

/// The second stage, for up to a few matrices whose sums have one type. Its predecessor in the stream may let it start
/// early.
template <std::size_t N>
void add_column_partials(const float* partials, std::uint32_t blocks, std::int64_t columns, bool accumulate,
                         const std::array<Tensor, N>& sums, cudaStream_t stream) {
  with_element(sums[0].dtype, [&]<class T>(T) {
    ColumnSums<T, N> all;
    for (std::size_t i = 0; i < N; ++i) all.of[i] = sums[i].template as<T>();
    launch_early(column_totals<T, N>, N * ceil_div(columns, kTotalsWidth), kTotalsWidth * kTotalsHeight, 0, stream,
                 partials, blocks, columns, accumulate, all);
  });
}

template <int V, class Values>
void sum_matrix_columns(const Values& values, std::int64_t rows, std::int64_t columns, Scratch& scratch,
                        bool accumulate, const Tensor& sums, cudaStream_t stream) {
  const std::uint32_t groups = ceil_div(columns, V);
  std::uint32_t width = 1;
  while (width < groups && width < kColumnWidth) width *= 2;
  const std::uint32_t height = kColumnThreads / width;
  const std::uint32_t beside = ceil_div(groups, width);
  const std::uint32_t most = std::clamp<std::uint32_t>(kResidentColumnBlocks / beside, 16, kColumnBlocks);
  const std::uint32_t blocks = std::clamp<std::uint32_t>(ceil_div(rows, 4 * height), 1, most);
  auto* partials = scratch.reserve_elements<float>(static_cast<std::size_t>(columns) * kColumnBlocks, stream);
  launch_kernel(column_partials<V, Values>, dim3(blocks, beside), kColumnThreads, 0, stream, values, rows, columns,
                width, partials);
  add_column_partials(partials, blocks, columns, accumulate, std::array{sums}, stream);
}

/// sums [columns] (+)= column sums of a matrix [rows, columns]. `values_for(std::integral_constant<int, V>{})` gives
/// the matrix as an object that is called as (row, column, float (&value)[V]), for V neighbouring elements of a row. V
/// is kWide if all rows can be read so (`wide`), else 1.
template <int kWide, class ValuesFor>
void sum_matrix_columns(bool wide, const ValuesFor& values_for, std::int64_t rows, std::int64_t columns,
                        Scratch& scratch, bool accumulate, const Tensor& sums, cudaStream_t stream) {
  if (wide) {
    const auto values = values_for(std::integral_constant<int, kWide>{});
    return sum_matrix_columns<kWide>(values, rows, columns, scratch, accumulate, sums, stream);
  }
  sum_matrix_columns<1>(values_for(std::integral_constant<int, 1>{}), rows, columns, scratch, accumulate, sums, stream);
}

}  // namespace ddptrain::cuda
