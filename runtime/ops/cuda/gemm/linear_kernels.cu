#include "runtime/ops/cuda/gemm/linear_kernels.h"

#include <algorithm>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/ops/cuda/column_sums.cuh"
#include "runtime/ops/cuda/gemm/gelu.cuh"

namespace ddptrain::cuda {

namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kMaxBlocks = 1u << 20;

template <int V, class T>
__global__ void __launch_bounds__(kThreads) gelu_kernel(const T* pre, std::size_t count, T* out) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * kThreads * V;
  for (std::size_t i = (static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x) * V; i < count; i += stride) {
    float value[V];
    load<V>(pre + i, value);
#pragma unroll
    for (float& x : value) x = gelu_of<T>(x);
    store<V>(value, out + i);
  }
}

/// In place dpre *= gelu'(pre).
template <class T, int V>
struct GeluGradient {
  const T* pre;
  T* dpre;
  std::uint32_t columns;

  __device__ void operator()(std::uint32_t row, std::uint32_t column, float (&value)[V]) const {
    const std::size_t at = static_cast<std::size_t>(row) * columns + column;
    float x[V];
    load<V>(pre + at, x);
    load<V>(dpre + at, value);
#pragma unroll
    for (int i = 0; i < V; ++i) value[i] *= gelu_slope_of<T>(x[i]);
    store<V>(value, dpre + at);
  }
};

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

void gelu(const Tensor& pre, const Tensor& y, cudaStream_t stream) {
  const std::int64_t count = pre.size();
  if (count == 0) return;
  with_element(pre.dtype, [&]<class T>(T) {
    constexpr int kWide = 16 / sizeof(T);
    const bool wide = count % kWide == 0 && is_aligned(pre.data, 16) && is_aligned(y.data, 16);
    const std::uint32_t blocks = std::min(ceil_div(count, kThreads * (wide ? kWide : 1)), kMaxBlocks);
    launch_kernel(wide ? gelu_kernel<kWide, T> : gelu_kernel<1, T>, blocks, kThreads, 0, stream, pre.as<const T>(),
                  count, y.as<T>());
  });
}

void gelu_backward(const Tensor& pre, const Tensor& dpre, const Tensor& sums, bool accumulate, Scratch& scratch,
                   cudaStream_t stream) {
  with_element(dpre.dtype, [&]<class T>(T) {
    constexpr int kWide = 16 / sizeof(T);
    const auto columns = static_cast<std::uint32_t>(dpre.dim(1));
    const auto values = [&](auto width) { return GeluGradient<T, width.value>{pre.as<T>(), dpre.as<T>(), columns}; };
    const bool wide = columns % kWide == 0 && is_aligned(pre.data, 16) && is_aligned(dpre.data, 16);
    sum_matrix_columns<kWide>(wide, values, dpre.dim(0), columns, scratch, accumulate, sums, stream);
  });
}

}  // namespace ddptrain::cuda
