#include "runtime/ops/cuda/column_sums.cuh"
#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/cuda/dropout.cuh"
#include "runtime/ops/expect_tensor.h"
#include "runtime/ops/pool.h"

namespace ddptrain {

namespace cuda {
namespace {

constexpr std::uint8_t kNoWinner = 4;

struct PoolDims {
  std::uint32_t batch, height, width, channels;

  DDP_HOST_DEVICE std::uint32_t out_width() const { return width / 2; }
  DDP_HOST_DEVICE std::uint32_t out_pixels() const { return (height / 2) * (width / 2); }
  DDP_HOST_DEVICE std::uint32_t features() const { return out_pixels() * channels; }
  Shape output() const { return {batch, height / 2, width / 2, channels}; }
  /// Offset in an image of the first channel of the top left input of an output pixel.
  DDP_HOST_DEVICE std::uint32_t corner(std::uint32_t out_pixel) const {
    return (2 * (out_pixel / out_width()) * width + 2 * (out_pixel % out_width())) * channels;
  }
  DDP_HOST_DEVICE std::size_t image() const { return static_cast<std::size_t>(height) * width * channels; }
};

/// One thread for the features that share a Philox call.
template <class T>
__global__ void __launch_bounds__(kDropoutThreads)
    pool_kernel(PoolDims d, const T* x, const T* bias, Dropout dropout, T* out, std::uint8_t* winner) {
  const std::uint32_t call = blockIdx.x * kDropoutThreads + threadIdx.x;
  const std::uint32_t first = first_feature(call);
  const std::uint32_t features = d.features();
  if (first >= features) return;
  for (std::uint32_t row = blockIdx.y; row < d.batch; row += gridDim.y) {
    const DropoutFactors factors(dropout, call, row);
    const T* image = x + row * d.image();
#pragma unroll
    for (std::uint32_t lane = 0; lane < 8; ++lane) {
      const std::uint32_t feature = first + feature_offset(lane);
      if (feature >= features) continue;
      const std::uint32_t channel = feature % d.channels;
      const T* top = image + d.corner(feature / d.channels) + channel;
      const T* bottom = top + d.width * d.channels;
      float largest = to_float(top[0]);
      std::uint32_t at = 0;
      const float others[3] = {to_float(top[d.channels]), to_float(bottom[0]), to_float(bottom[d.channels])};
#pragma unroll
      for (std::uint32_t i = 0; i < 3; ++i) {
        if (others[i] > largest) {
          largest = others[i];
          at = i + 1;
        }
      }
      const float value = fmaxf(largest + to_float(bias[channel]), 0.0f) * factors.of(lane);
      const std::size_t to = static_cast<std::size_t>(row) * features + feature;
      out[to] = from_float<T>(value);
      winner[to] = static_cast<std::uint8_t>(value > 0.0f ? at : kNoWinner);
    }
  }
}

/// Rows are the output pixels of all images; writes their four inputs.
template <class T, int V>
struct PoolBackward {
  PoolDims d;
  const T* dout;
  const std::uint8_t* winner;
  float scale;
  T* dx;

  __device__ void operator()(std::uint32_t row, std::uint32_t channel, float (&gradient)[V]) const {
    const std::size_t from = static_cast<std::size_t>(row) * d.channels + channel;
    const auto winners = *reinterpret_cast<const Pack<std::uint8_t, V>*>(winner + from);
    load<V>(dout + from, gradient);
#pragma unroll
    for (int i = 0; i < V; ++i) gradient[i] = winners.value[i] < kNoWinner ? gradient[i] * scale : 0.0f;
    const std::uint32_t image = row / d.out_pixels();
    T* corner = dx + image * d.image() + d.corner(row - image * d.out_pixels()) + channel;
#pragma unroll
    for (std::uint32_t position = 0; position < 4; ++position) {
      float value[V];
#pragma unroll
      for (int i = 0; i < V; ++i) value[i] = winners.value[i] == position ? gradient[i] : 0.0f;
      store<V>(value, corner + ((position / 2) * d.width + position % 2) * d.channels);
    }
  }
};

PoolDims dims_of(const char* what, const Tensor& x, DType dtype) {
  require(x.shape.size() == 4, "bias_relu_pool_dropout: images must have four dimensions");
  expect_tensor(x, what, dtype, x.shape);
  const auto dim = [&x](std::size_t i) { return static_cast<std::uint32_t>(x.dim(i)); };
  return {dim(0), dim(1), dim(2), dim(3)};
}

}  // namespace
}  // namespace cuda

namespace {

class CudaPool final : public PoolOps, CudaOps {
 public:
  using CudaOps::CudaOps;

  void bias_relu_pool_dropout(const Tensor& x, const Tensor& bias, const Dropout& dropout, const Tensor& out,
                              const Tensor& winner) override {
    const cuda::PoolDims d = cuda::dims_of("bias_relu_pool_dropout: x", x, dtype());
    expect_tensor(bias, "bias_relu_pool_dropout: bias", dtype(), {d.channels});
    expect_tensor(out, "bias_relu_pool_dropout: out", dtype(), d.output());
    expect_tensor(winner, "bias_relu_pool_dropout: winner", DType::u8, d.output());
    if (out.size() == 0) return;
    cuda::with_element(dtype(), [&](auto element) {
      using T = decltype(element);
      cuda::pool_kernel<T><<<cuda::dropout_grid(d.batch, d.features()), cuda::kDropoutThreads, 0, stream()>>>(
          d, x.as<T>(), bias.as<T>(), dropout, out.as<T>(), winner.as<std::uint8_t>());
    });
    DDP_CUDA(cudaGetLastError());
  }

  void bias_relu_pool_dropout_backward(const Tensor& dout, const Tensor& winner, const Dropout& dropout,
                                       const Tensor& dx, const Tensor& dbias, bool accumulate) override {
    const cuda::PoolDims d = cuda::dims_of("bias_relu_pool_dropout_backward: dx", dx, dtype());
    expect_tensor(dout, "bias_relu_pool_dropout_backward: dout", dtype(), d.output());
    expect_tensor(winner, "bias_relu_pool_dropout_backward: winner", DType::u8, d.output());
    expect_tensor(dbias, "bias_relu_pool_dropout_backward: dbias", dtype(), {d.channels});
    const bool uncovered = d.height % 2 != 0 || d.width % 2 != 0;  // the last row or column belongs to no window
    if (uncovered) device_.zero(dx.data, dx.bytes(), device_.compute_stream());
    const std::int64_t rows = static_cast<std::int64_t>(d.batch) * d.out_pixels();
    const float scale = dropout.rate > 0.0f ? dropout.scale() : 1.0f;
    auto* partials = scratch().reserve_elements<float>(cuda::column_scratch(d.channels), stream());
    cuda::with_element(dtype(), [&](auto element) {
      using T = decltype(element);
      const auto* winners = winner.as<const std::uint8_t>();
      if (cuda::in_fours(d.channels, dout.data, winner.data, dx.data)) {
        cuda::sum_matrix_columns<4>(cuda::PoolBackward<T, 4>{d, dout.as<T>(), winners, scale, dx.as<T>()}, rows,
                                    d.channels, partials, accumulate, dbias.as<T>(), stream());
      } else {
        cuda::sum_matrix_columns<1>(cuda::PoolBackward<T, 1>{d, dout.as<T>(), winners, scale, dx.as<T>()}, rows,
                                    d.channels, partials, accumulate, dbias.as<T>(), stream());
      }
    });
  }
};

}  // namespace

std::unique_ptr<PoolOps> PoolOps::on_cuda(Device& device) { return std::make_unique<CudaPool>(device); }

}  // namespace ddptrain
