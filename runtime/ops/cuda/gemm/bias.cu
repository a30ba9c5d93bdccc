#include "runtime/ops/cuda/gemm/bias.h"

#include <algorithm>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/ops/cuda/column_sums.cuh"

namespace ddptrain::cuda {

namespace {

constexpr std::uint32_t kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    repeat_row_kernel(const T* row, std::uint32_t rows, std::uint32_t columns, T* out) {
  const std::uint32_t column = blockIdx.x * kThreads + threadIdx.x;
  if (column >= columns) return;
  const T value = row[column];
  for (std::uint32_t i = blockIdx.y; i < rows; i += gridDim.y)
    out[static_cast<std::size_t>(i) * columns + column] = value;
}

template <class T, class G>
__global__ void __launch_bounds__(kThreads)
    add_row_kernel(const T* row, std::uint32_t columns, bool accumulate, G* sums) {
  const std::uint32_t column = blockIdx.x * kThreads + threadIdx.x;
  if (column >= columns) return;
  const float before = accumulate ? to_float(sums[column]) : 0.0f;
  sums[column] = from_float<G>(before + to_float(row[column]));
}

template <class T, int V>
struct Plain {
  const T* values;
  std::uint32_t columns;

  __device__ void operator()(std::uint32_t row, std::uint32_t column, float (&value)[V]) const {
    load<V>(values + static_cast<std::size_t>(row) * columns + column, value);
  }
};

}  // namespace

void repeat_row(const void* row, std::int64_t rows, std::int64_t columns, DType dtype, void* out, cudaStream_t stream) {
  const dim3 grid(ceil_div(columns, kThreads), static_cast<std::uint32_t>(std::min<std::int64_t>(rows, 65535)));
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
    repeat_row_kernel<<<grid, kThreads, 0, stream>>>(static_cast<const T*>(row), static_cast<std::uint32_t>(rows),
                                                     static_cast<std::uint32_t>(columns), static_cast<T*>(out));
  });
  DDP_CUDA(cudaGetLastError());
}

void add_row(const void* row, DType dtype, const Tensor& sums, bool accumulate, cudaStream_t stream) {
  const auto columns = static_cast<std::uint32_t>(sums.size());
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
    with_element(sums.dtype, [&](auto gradient) {
      using G = decltype(gradient);
      add_row_kernel<<<ceil_div(columns, kThreads), kThreads, 0, stream>>>(static_cast<const T*>(row), columns,
                                                                           accumulate, sums.as<G>());
    });
  });
  DDP_CUDA(cudaGetLastError());
}

void sum_columns(const Tensor& matrix, const Tensor& sums, bool accumulate, Scratch& scratch, cudaStream_t stream) {
  const std::int64_t rows = matrix.dim(0), columns = matrix.dim(1);
  auto* partials = scratch.reserve_elements<float>(column_scratch(columns), stream);
  const auto width = static_cast<std::uint32_t>(columns);
  with_element(matrix.dtype, [&](auto element) {
    using T = decltype(element);
    with_element(sums.dtype, [&](auto sum) {
      using G = decltype(sum);
      constexpr int kWide = 16 / sizeof(T);
      if (columns % kWide == 0 && is_aligned(matrix.data, 16)) {
        sum_matrix_columns<kWide>(Plain<T, kWide>{matrix.as<T>(), width}, rows, columns, partials, accumulate,
                                  sums.as<G>(), stream);
      } else {
        sum_matrix_columns<1>(Plain<T, 1>{matrix.as<T>(), width}, rows, columns, partials, accumulate, sums.as<G>(),
                              stream);
      }
    });
  });
}

}  // namespace ddptrain::cuda
