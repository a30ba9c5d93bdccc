#include <algorithm>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/expect_tensor.h"
#include "runtime/ops/gather.h"

namespace ddptrain {

namespace cuda {
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

}  // namespace
}  // namespace cuda

namespace {

class CudaGather final : public GatherOps, CudaOps {
 public:
  using CudaOps::CudaOps;

  void gather_images(const ImageBatch& batch, const Tensor& out) override {
    const Tensor& images = batch.images;
    cuda::require(images.dtype == DType::u8 && images.shape.size() == 3, "gather_images: images must be u8 [n, h, w]");
    expect_tensor(out, "gather_images: out", dtype(), {batch.count, images.dim(1), images.dim(2), 1});
    if (batch.count == 0) return;
    const auto pixels = static_cast<std::uint32_t>(images.dim(1) * images.dim(2));
    const auto count = static_cast<std::uint32_t>(batch.count);
    cuda::with_element(dtype(), [&](auto element) {
      using T = decltype(element);
      const auto kernel =
          cuda::in_fours(pixels, images.data, out.data) ? cuda::gather_kernel<T, 4> : cuda::gather_kernel<T, 1>;
      kernel<<<count, cuda::kThreads, 0, stream()>>>(images.as<const std::uint8_t>(), batch.order, batch.step, pixels,
                                                     out.as<T>());
    });
    DDP_CUDA(cudaGetLastError());
  }
};

}  // namespace

std::unique_ptr<GatherOps> GatherOps::on_cuda(Device& device) { return std::make_unique<CudaGather>(device); }

}  // namespace ddptrain
