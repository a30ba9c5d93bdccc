#include "runtime/ops/cuda/column_sums.cuh"
#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/cuda/dropout.cuh"
#include "runtime/ops/images.h"

namespace ddptrain::cuda {

namespace {

constexpr std::uint32_t kGatherThreads = 128;

/// A block per image.
template <class T, int V>
__global__ void __launch_bounds__(kGatherThreads)
    gather_kernel(const std::uint8_t* images, SampleOrder order, StepRef step, std::uint32_t pixels, T* out) {
  __shared__ std::uint32_t sample;
  if (threadIdx.x == 0) sample = BatchRows(order, step)[blockIdx.x];
  __syncthreads();
  const std::uint8_t* from = images + static_cast<std::size_t>(sample) * pixels;
  T* to = out + static_cast<std::size_t>(blockIdx.x) * pixels;
  for (std::uint32_t i = threadIdx.x * V; i < pixels; i += kGatherThreads * V) {
    const auto bytes = *reinterpret_cast<const Pack<std::uint8_t, V>*>(from + i);
    float value[V];
#pragma unroll
    for (int k = 0; k < V; ++k) value[k] = static_cast<float>(bytes.value[k]) / 255.0f;
    store<V>(value, to + i);
  }
}

constexpr std::uint8_t kNoWinner = 4;

/// One thread for the features that share a Philox call.
template <class T>
__global__ void __launch_bounds__(kDropoutThreads)
    pool_kernel(PoolShape d, const T* x, const T* bias, Dropout dropout, T* out, std::uint8_t* winner) {
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
  PoolShape d;
  const T* d_output;
  const std::uint8_t* winner;
  float scale;
  T* dx;

  __device__ void operator()(std::uint32_t row, std::uint32_t channel, float (&gradient)[V]) const {
    const std::size_t from = static_cast<std::size_t>(row) * d.channels + channel;
    const auto winners = *reinterpret_cast<const Pack<std::uint8_t, V>*>(winner + from);
    load<V>(d_output + from, gradient);
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

class CudaImages final : public ImageOps, CudaOps {
 public:
  using CudaOps::CudaOps;

  void gather_images(const ImageBatch& batch, const Tensor& out) override {
    const Tensor& images = batch.images;
    const MatrixShape s = check_gather_images(batch, out, dtype());
    if (s.rows == 0) return;
    with_element(dtype(), [&]<class T>(T) {
      const auto kernel = in_fours(s.columns, images.data, out.data) ? gather_kernel<T, 4> : gather_kernel<T, 1>;
      launch_kernel(kernel, s.rows, kGatherThreads, 0, stream(), images.as<std::uint8_t>(), batch.order, batch.step,
                    s.columns, out.as<T>());
    });
  }

  void bias_relu_pool_dropout(const Tensor& x, const Tensor& bias, const Dropout& dropout, const Tensor& out,
                              const Tensor& winner) override {
    const PoolShape s = check_pool("bias_relu_pool_dropout", x, bias, out, winner, dtype());
    if (out.size() == 0) return;
    with_element(dtype(), [&]<class T>(T) {
      launch_kernel(pool_kernel<T>, dropout_grid(s.batch, s.features()), kDropoutThreads, 0, stream(), s, x.as<T>(),
                    bias.as<T>(), dropout, out.as<T>(), winner.as<std::uint8_t>());
    });
  }

  void bias_relu_pool_dropout_backward(const Tensor& d_output, const Tensor& winner, const Dropout& dropout,
                                       const Tensor& dx, const Tensor& dbias, bool accumulate) override {
    const PoolShape s = check_pool("bias_relu_pool_dropout_backward", dx, dbias, d_output, winner, dtype());
    if (s.has_rest()) device_.zero(dx.data, dx.bytes(), device_.compute_stream());
    const std::int64_t rows = static_cast<std::int64_t>(s.batch) * s.out_pixels();
    with_element(dtype(), [&]<class T>(T) {
      const auto values = [&](auto width) {
        return PoolBackward<T, width.value>{s, d_output.as<T>(), winner.as<std::uint8_t>(), dropout.scale(),
                                            dx.as<T>()};
      };
      sum_matrix_columns<4>(in_fours(s.channels, d_output.data, winner.data, dx.data), values, rows, s.channels,
                            scratch(), accumulate, dbias, stream());
    });
  }
};

}  // namespace

}  // namespace ddptrain::cuda

std::unique_ptr<ddptrain::ImageOps> ddptrain::ImageOps::on_cuda(Device& device) {
  return std::make_unique<cuda::CudaImages>(device);
}
