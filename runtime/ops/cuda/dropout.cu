#include "runtime/device/cuda/cuda_device.h"
#include "runtime/ops/cuda/dropout.cuh"
#include "runtime/ops/expect_tensor.h"

namespace ddptrain {

namespace cuda {
namespace {

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

void CudaDevice::dropout(const Tensor& x, const Dropout& dropout, const Tensor& y) {
  cuda::require(!x.shape.empty(), "dropout: x has no dimensions");
  expect_tensor(x, "dropout: x", dtype(), x.shape);
  expect_tensor(y, "dropout: y", dtype(), x.shape);
  if (x.size() == 0) return;
  if (dropout.rate <= 0.0f) {
    if (y.data != x.data) {
      DDP_CUDA(cudaMemcpyAsync(y.data, x.data, x.bytes(), cudaMemcpyDeviceToDevice, compute_.get()));
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
    kernel<<<grid, cuda::kDropoutThreads, 0, compute_.get()>>>(x.as<const T>(), rows, features, dropout, y.as<T>());
  });
  DDP_CUDA(cudaGetLastError());
}

}  // namespace ddptrain
