#include "runtime/device/cuda/cuda_device.h"
#include "runtime/ops/cuda/column_sums.cuh"
#include "runtime/ops/cuda/dropout.cuh"
#include "runtime/ops/expect_tensor.h"

namespace ddptrain {

namespace cuda {
namespace {

template <class T, int V>
struct ReluBackward {
  const T* y;
  T* dy;
  std::uint32_t columns;
  float scale;

  __device__ void operator()(std::uint32_t row, std::uint32_t column, float (&gradient)[V]) const {
    const std::size_t at = static_cast<std::size_t>(row) * columns + column;
    float output[V];
    load<V>(y + at, output);
    load<V>(dy + at, gradient);
#pragma unroll
    for (int i = 0; i < V; ++i) gradient[i] = output[i] > 0.0f ? gradient[i] * scale : 0.0f;
    store<V>(gradient, dy + at);
  }
};

template <class T, int V>
struct Plain {
  const T* values;
  std::uint32_t columns;

  __device__ void operator()(std::uint32_t row, std::uint32_t column, float (&value)[V]) const {
    load<V>(values + static_cast<std::size_t>(row) * columns + column, value);
  }
};

/// One thread for the features that share a Philox call.
template <class T>
__global__ void __launch_bounds__(kDropoutThreads)
    bias_relu_dropout_kernel(T* x, const T* bias, std::uint32_t rows, std::uint32_t features, Dropout dropout) {
  const std::uint32_t call = blockIdx.x * kDropoutThreads + threadIdx.x;
  const std::uint32_t first = first_feature(call);
  if (first >= features) return;
  for (std::uint32_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const DropoutFactors factors(dropout, call, row);
    T* values = x + static_cast<std::size_t>(row) * features;
#pragma unroll
    for (std::uint32_t lane = 0; lane < 8; ++lane) {
      const std::uint32_t feature = first + feature_offset(lane);
      if (feature >= features) continue;
      const float sum = to_float(values[feature]) + to_float(bias[feature]);
      values[feature] = from_float<T>(fmaxf(sum, 0.0f) * factors.of(lane));
    }
  }
}

}  // namespace
}  // namespace cuda

void CudaDevice::bias_relu_backward(const Tensor& y, const Tensor& dy, float scale, const Tensor& dbias,
                                    bool accumulate) {
  cuda::require(!y.shape.empty() && y.shape.back() > 0, "bias_relu_backward: y has no columns");
  const std::int64_t columns = y.shape.back();
  const std::int64_t rows = y.size() / columns;
  expect_tensor(y, "bias_relu_backward: y", dtype(), y.shape);
  expect_tensor(dy, "bias_relu_backward: dy", dtype(), y.shape);
  expect_tensor(dbias, "bias_relu_backward: dbias", dtype(), {columns});
  auto* partials = scratch_.reserve_elements<float>(cuda::column_scratch(columns), compute_.get());
  const auto width = static_cast<std::uint32_t>(columns);
  cuda::with_element(dtype(), [&](auto element) {
    using T = decltype(element);
    if (cuda::in_fours(columns, y.data, dy.data)) {
      cuda::sum_matrix_columns<4>(cuda::ReluBackward<T, 4>{y.as<T>(), dy.as<T>(), width, scale}, rows, columns,
                                  partials, accumulate, dbias.as<T>(), compute_.get());
    } else {
      cuda::sum_matrix_columns<1>(cuda::ReluBackward<T, 1>{y.as<T>(), dy.as<T>(), width, scale}, rows, columns,
                                  partials, accumulate, dbias.as<T>(), compute_.get());
    }
  });
}

void CudaDevice::sum_columns(const Tensor& dy, const Tensor& dbias, bool accumulate) {
  const std::int64_t rows = dy.dim(0);
  const std::int64_t columns = dy.dim(1);
  auto* partials = scratch_.reserve_elements<float>(cuda::column_scratch(columns), compute_.get());
  const auto width = static_cast<std::uint32_t>(columns);
  cuda::with_element(dtype(), [&](auto element) {
    using T = decltype(element);
    cuda::with_element(dbias.dtype, [&](auto gradient) {
      using G = decltype(gradient);
      constexpr int kWide = 16 / sizeof(T);
      if (columns % kWide == 0 && cuda::is_aligned(dy.data, 16)) {
        cuda::sum_matrix_columns<kWide>(cuda::Plain<T, kWide>{dy.as<T>(), width}, rows, columns, partials, accumulate,
                                        dbias.as<G>(), compute_.get());
      } else {
        cuda::sum_matrix_columns<1>(cuda::Plain<T, 1>{dy.as<T>(), width}, rows, columns, partials, accumulate,
                                    dbias.as<G>(), compute_.get());
      }
    });
  });
}

void CudaDevice::bias_relu_dropout(const Tensor& x, const Tensor& bias, const Dropout& dropout) {
  cuda::require(x.shape.size() == 2, "bias_relu_dropout: x must have two dimensions");
  const std::int64_t features = x.dim(1);
  expect_tensor(x, "bias_relu_dropout: x", dtype(), x.shape);
  expect_tensor(bias, "bias_relu_dropout: bias", dtype(), {features});
  if (x.size() == 0) return;
  cuda::with_element(dtype(), [&](auto element) {
    using T = decltype(element);
    cuda::bias_relu_dropout_kernel<T>
        <<<cuda::dropout_grid(x.dim(0), features), cuda::kDropoutThreads, 0, compute_.get()>>>(
            x.as<T>(), bias.as<T>(), static_cast<std::uint32_t>(x.dim(0)), static_cast<std::uint32_t>(features),
            dropout);
  });
  DDP_CUDA(cudaGetLastError());
}

}  // namespace ddptrain
