#include "runtime/ops/activation.h"

#include "runtime/ops/cuda/column_sums.cuh"
#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/cuda/dropout.cuh"

namespace ddptrain::cuda {

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

class CudaActivation final : public ActivationOps, CudaOps {
 public:
  using CudaOps::CudaOps;

  void bias_relu_backward(const Tensor& y, const Tensor& dy, float scale, const Tensor& dbias,
                          bool accumulate) override {
    const MatrixShape s = check_activation("bias_relu_backward", y, dy, dbias, dtype());
    const auto columns = static_cast<std::uint32_t>(s.columns);
    with_element(dtype(), [&]<class T>(T) {
      const auto values = [&](auto width) {
        return ReluBackward<T, width.value>{y.as<T>(), dy.as<T>(), columns, scale};
      };
      sum_matrix_columns<4>(in_fours(columns, y.data, dy.data), values, s.rows, columns, scratch(), accumulate, dbias,
                            stream());
    });
  }

  void bias_relu_dropout(const Tensor& x, const Tensor& bias, const Dropout& dropout) override {
    const MatrixShape s = check_activation("bias_relu_dropout", x, x, bias, dtype());
    if (x.size() == 0) return;
    with_element(dtype(), [&]<class T>(T) {
      launch_kernel(bias_relu_dropout_kernel<T>, dropout_grid(s.rows, s.columns), kDropoutThreads, 0, stream(),
                    x.as<T>(), bias.as<T>(), s.rows, s.columns, dropout);
    });
  }

  void dropout(const Tensor& x, const Dropout& dropout, const Tensor& y) override {
    check_activation("dropout", x, y, {}, dtype());
    if (x.size() == 0) return;
    if (dropout.rate <= 0.0f) {
      if (y.data != x.data) {
        DDP_CUDA(cudaMemcpyAsync(y.data, x.data, x.bytes(), cudaMemcpyDeviceToDevice, stream()));
      }
      return;
    }
    const auto rows = static_cast<std::uint32_t>(x.dim(0));
    const auto features = static_cast<std::uint32_t>(x.size() / x.dim(0));
    const bool wide = features % 8 == 0 && is_aligned(x.data, 16) && is_aligned(y.data, 16);
    const dim3 grid(ceil_div(features, kDropoutThreads * (wide ? 8 : 1)), std::min(rows, 65535u));
    with_element(dtype(), [&]<class T>(T) {
      launch_kernel(wide ? dropout_kernel<T> : any_width_dropout_kernel<T>, grid, kDropoutThreads, 0, stream(),
                    x.as<T>(), rows, features, dropout, y.as<T>());
    });
  }
};

}  // namespace

}  // namespace ddptrain::cuda

std::unique_ptr<ddptrain::ActivationOps> ddptrain::ActivationOps::on_cuda(Device& device) {
  return std::make_unique<cuda::CudaActivation>(device);
}
