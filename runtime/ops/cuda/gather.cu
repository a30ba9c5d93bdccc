#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/gather.h"

namespace ddptrain::cuda {

namespace {

constexpr std::uint32_t kThreads = 128;

/// A block per image.
template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const std::uint8_t* images, SampleOrder order, StepRef step, std::uint32_t pixels, T* out) {
  __shared__ std::uint32_t sample;
  if (threadIdx.x == 0) sample = BatchRows(order, step)[blockIdx.x];
  __syncthreads();
  const std::uint8_t* from = images + static_cast<std::size_t>(sample) * pixels;
  T* to = out + static_cast<std::size_t>(blockIdx.x) * pixels;
  for (std::uint32_t i = threadIdx.x * V; i < pixels; i += kThreads * V) {
    const auto bytes = *reinterpret_cast<const Pack<std::uint8_t, V>*>(from + i);
    float value[V];
#pragma unroll
    for (int k = 0; k < V; ++k) value[k] = static_cast<float>(bytes.value[k]) / 255.0f;
    store<V>(value, to + i);
  }
}

class CudaGather final : public GatherOps, CudaOps {
 public:
  using CudaOps::CudaOps;

  void gather_images(const ImageBatch& batch, const Tensor& out) override {
    const Tensor& images = batch.images;
    const MatrixShape s = check_gather_images(batch, out, dtype());
    if (s.rows == 0) return;
    with_element(dtype(), [&]<class T>(T) {
      const auto kernel = in_fours(s.columns, images.data, out.data) ? gather_kernel<T, 4> : gather_kernel<T, 1>;
      launch_kernel(kernel, s.rows, kThreads, 0, stream(), images.as<std::uint8_t>(), batch.order, batch.step,
                    s.columns, out.as<T>());
    });
  }
};

}  // namespace

}  // namespace ddptrain::cuda

std::unique_ptr<ddptrain::GatherOps> ddptrain::GatherOps::on_cuda(Device& device) {
  return std::make_unique<cuda::CudaGather>(device);
}
