#include "runtime/ops/activation.h"

#include "runtime/ops/cuda/column_sums.cuh"
#include "runtime/ops/cuda/cuda_ops.h"
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

/// Eight features of a row per thread; `features` is a multiple of 8.
template <class T>
__global__ void __launch_bounds__(kDropoutThreads)
    dropout_kernel(const T* x, std::uint32_t rows, std::uint32_t features, Dropout dropout, T* y) {
  const std::uint32_t feature = 8 * (blockIdx.x * kDropoutThreads + threadIdx.x);
  for (std::uint32_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const std::size_t at = static_cast<std::size_t>(row) * features + feature;
    float factor[8], value[8] = {};
    if (feature < features) load<8>(x + at, value);  // on its way while random numbers are drawn
    eight_factors(dropout, feature, row, features, factor);
    if (feature >= features) continue;
#pragma unroll
    for (int i = 0; i < 8; ++i) value[i] *= factor[i];
    store<8>(value, y + at);
  }
}

template <class T>
__global__ void __launch_bounds__(kDropoutThreads)
    any_width_dropout_kernel(const T* x, std::uint32_t rows, std::uint32_t features, Dropout dropout, T* y) {
  const std::uint32_t feature = blockIdx.x * kDropoutThreads + threadIdx.x;
  if (feature >= features) return;
  for (std::uint32_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const std::size_t at = static_cast<std::size_t>(row) * features + feature;
    y[at] = from_float<T>(dropout.keeps(feature, row) ? to_float(x[at]) * dropout.scale() : 0.0f);
  }
}

}  // namespace
}  // namespace cuda

namespace {

class CudaActivation final : public ActivationOps, CudaOps {
 public:
  using CudaOps::CudaOps;

  void bias_relu_backward(const Tensor& y, const Tensor& dy, float scale, const Tensor& dbias,
                          bool accumulate) override {
    cuda::require(!y.shape.empty() && y.shape.back() > 0, "bias_relu_backward: y has no columns");
    const std::int64_t columns = y.shape.back();
    const std::int64_t rows = y.size() / columns;
    expect_tensor(y, "bias_relu_backward: y", dtype(), y.shape);
    expect_tensor(dy, "bias_relu_backward: dy", dtype(), y.shape);
    expect_tensor(dbias, "bias_relu_backward: dbias", dtype(), {columns});
    auto* partials = scratch().reserve_elements<float>(cuda::column_scratch(columns), stream());
    const auto width = static_cast<std::uint32_t>(columns);
    cuda::with_element(dtype(), [&](auto element) {
      using T = decltype(element);
      if (cuda::in_fours(columns, y.data, dy.data)) {
        cuda::sum_matrix_columns<4>(cuda::ReluBackward<T, 4>{y.as<T>(), dy.as<T>(), width, scale}, rows, columns,
                                    partials, accumulate, dbias.as<T>(), stream());
      } else {
        cuda::sum_matrix_columns<1>(cuda::ReluBackward<T, 1>{y.as<T>(), dy.as<T>(), width, scale}, rows, columns,
                                    partials, accumulate, dbias.as<T>(), stream());
      }
    });
  }

  void bias_relu_dropout(const Tensor& x, const Tensor& bias, const Dropout& dropout) override {
    cuda::require(x.shape.size() == 2, "bias_relu_dropout: x must have two dimensions");
    const std::int64_t features = x.dim(1);
    expect_tensor(x, "bias_relu_dropout: x", dtype(), x.shape);
    expect_tensor(bias, "bias_relu_dropout: bias", dtype(), {features});
    if (x.size() == 0) return;
    cuda::with_element(dtype(), [&](auto element) {
      using T = decltype(element);
      cuda::bias_relu_dropout_kernel<T><<<cuda::dropout_grid(x.dim(0), features), cuda::kDropoutThreads, 0, stream()>>>(
          x.as<T>(), bias.as<T>(), static_cast<std::uint32_t>(x.dim(0)), static_cast<std::uint32_t>(features), dropout);
    });
    DDP_CUDA(cudaGetLastError());
  }

  void dropout(const Tensor& x, const Dropout& dropout, const Tensor& y) override {
    cuda::require(!x.shape.empty(), "dropout: x has no dimensions");
    expect_tensor(x, "dropout: x", dtype(), x.shape);
    expect_tensor(y, "dropout: y", dtype(), x.shape);
    if (x.size() == 0) return;
    if (dropout.rate <= 0.0f) {
      if (y.data != x.data) {
        DDP_CUDA(cudaMemcpyAsync(y.data, x.data, x.bytes(), cudaMemcpyDeviceToDevice, stream()));
      }
      return;
    }
    const auto rows = static_cast<std::uint32_t>(x.dim(0));
    const auto features = static_cast<std::uint32_t>(x.size() / x.dim(0));
    const bool wide = features % 8 == 0 && cuda::is_aligned(x.data, 16) && cuda::is_aligned(y.data, 16);
    const dim3 grid(cuda::ceil_div(features, cuda::kDropoutThreads * (wide ? 8 : 1)), std::min(rows, 65535u));
    cuda::with_element(dtype(), [&](auto element) {
      using T = decltype(element);
      const auto kernel = wide ? cuda::dropout_kernel<T> : cuda::any_width_dropout_kernel<T>;
      kernel<<<grid, cuda::kDropoutThreads, 0, stream()>>>(x.as<const T>(), rows, features, dropout, y.as<T>());
    });
    DDP_CUDA(cudaGetLastError());
  }
};

}  // namespace

std::unique_ptr<ActivationOps> ActivationOps::on_cuda(Device& device) {
  return std::make_unique<CudaActivation>(device);
}

}  // namespace ddptrain
