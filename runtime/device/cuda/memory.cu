#include <algorithm>
#include <type_traits>

#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/cuda/elements.cuh"

namespace ddptrain {

namespace cuda {
namespace {

constexpr std::uint32_t kThreads = 256;

template <class To, class From>
__device__ To converted(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<From, __nv_bfloat16>) {
    return static_cast<To>(__bfloat162float(value));
  } else if constexpr (std::is_same_v<To, __nv_bfloat16> && std::is_same_v<From, double>) {
    return __double2bfloat16(value);  // rounds once
  } else if constexpr (std::is_same_v<To, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else {
    return static_cast<To>(value);
  }
}

template <int V, class From, class To>
__global__ void __launch_bounds__(kThreads) convert_kernel(const From* src, To* dst, std::size_t count) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * kThreads * V;
  for (std::size_t i = (static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x) * V; i < count; i += stride) {
    if (i + V <= count) {
      const auto from = *reinterpret_cast<const Pack<From, V>*>(src + i);
      Pack<To, V> to;
#pragma unroll
      for (int k = 0; k < V; ++k) to.value[k] = converted<To>(from.value[k]);
      *reinterpret_cast<Pack<To, V>*>(dst + i) = to;
    } else {
      for (std::size_t k = i; k < count; ++k) dst[k] = converted<To>(src[k]);
    }
  }
}

template <class From, class To>
void convert_values(const Tensor& src, const Tensor& dst, cudaStream_t stream) {
  const std::int64_t count = src.size();
  const bool wide = is_aligned(src.data, 4 * sizeof(From)) && is_aligned(dst.data, 4 * sizeof(To));
  const std::uint32_t blocks = std::min<std::uint32_t>(ceil_div(count, kThreads * (wide ? 4 : 1)), 4096);
  const auto kernel = wide ? convert_kernel<4, From, To> : convert_kernel<1, From, To>;
  kernel<<<blocks, kThreads, 0, stream>>>(src.as<const From>(), dst.as<To>(), static_cast<std::size_t>(count));
  DDP_CUDA(cudaGetLastError());
}

template <class From>
void convert_from(const Tensor& src, const Tensor& dst, cudaStream_t stream) {
  switch (dst.dtype) {
    case DType::f64:
      return convert_values<From, double>(src, dst, stream);
    case DType::f32:
      return convert_values<From, float>(src, dst, stream);
    case DType::bf16:
      return convert_values<From, __nv_bfloat16>(src, dst, stream);
    default:
      require(false, "convert: no conversion to this type");
  }
}

}  // namespace

int code_version() {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, convert_kernel<1, float, float>);
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    cudaGetLastError();
    return 0;
  }
  check(status, "cudaFuncGetAttributes", __FILE__, __LINE__);
  return attributes.ptxVersion;
}

}  // namespace cuda

void CudaDevice::convert(const Tensor& src, const Tensor& dst, Stream stream) {
  cuda::require(src.size() == dst.size(), "convert: source and destination differ in size");
  if (src.size() == 0) return;
  auto* queue = static_cast<cudaStream_t>(stream.handle);
  switch (src.dtype) {
    case DType::f64:
      return cuda::convert_from<double>(src, dst, queue);
    case DType::f32:
      return cuda::convert_from<float>(src, dst, queue);
    case DType::bf16:
      return cuda::convert_from<__nv_bfloat16>(src, dst, queue);
    default:
      cuda::require(false, "convert: no conversion from this type");
  }
}

}  // namespace ddptrain
