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
  with_element(dtype, [&]<class T>(T) {
    launch_kernel(repeat_row_kernel<T>, grid, kThreads, 0, stream, static_cast<const T*>(row), rows, columns,
                  static_cast<T*>(out));
  });
}

void sum_columns(const Tensor& matrix, const Tensor& sums, bool accumulate, Scratch& scratch, cudaStream_t stream) {
  const auto columns = static_cast<std::uint32_t>(matrix.dim(1));
  with_element(matrix.dtype, [&]<class T>(T) {
    constexpr int kWide = 16 / sizeof(T);
    const auto values = [&](auto width) { return Plain<T, width.value>{matrix.as<T>(), columns}; };
    const bool wide = columns % kWide == 0 && is_aligned(matrix.data, 16);
    sum_matrix_columns<kWide>(wide, values, matrix.dim(0), columns, scratch, accumulate, sums, stream);
  });
}

}  // namespace ddptrain::cuda
