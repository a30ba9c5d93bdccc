#include <cuda_bf16.h>

#include <algorithm>

#include "benchmarks/ddpbench/collectives/check_pattern.h"
#include "runtime/device/cuda/cuda_utils.h"

namespace ddptrain::bench::gpu {
namespace {

constexpr int kThreads = 256;

__device__ float to_float(float value) { return value; }
__device__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <class T>
__global__ void fill_kernel(T* values, std::uint64_t count, int rank) {
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * kThreads;
  for (std::uint64_t i = static_cast<std::uint64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += stride) {
    values[i] = static_cast<T>(static_cast<float>(pattern(rank, i)));
  }
}

template <class T>
__global__ void wrong_kernel(const T* values, std::uint64_t count, Expected expected, unsigned long long* wrong) {
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * kThreads;
  unsigned long long mine = 0;
  for (std::uint64_t i = static_cast<std::uint64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += stride) {
    if (to_float(values[i]) != static_cast<float>(expected.value(i))) ++mine;
  }
  if (mine > 0) atomicAdd(wrong, mine);
}

int blocks_for(std::uint64_t count) {
  return static_cast<int>(std::min<std::uint64_t>((count + kThreads - 1) / kThreads, 4096));
}

template <class Work>
void with_type(const Tensor& values, Work work) {
  cuda::require(values.dtype == DType::f32 || values.dtype == DType::bf16, "check pattern: f32 and bf16 only");
  if (values.dtype == DType::f32) {
    work(values.as<float>());
  } else {
    work(values.as<__nv_bfloat16>());
  }
  DDP_CUDA(cudaGetLastError());
  DDP_CUDA(cudaDeviceSynchronize());
}

}  // namespace

void fill_pattern(const Tensor& values, int rank) {
  const auto count = static_cast<std::uint64_t>(values.size());
  if (count == 0) return;
  with_type(values, [&](auto* data) { fill_kernel<<<blocks_for(count), kThreads>>>(data, count, rank); });
}

std::uint64_t count_wrong(const Tensor& values, const Expected& expected) {
  const auto count = static_cast<std::uint64_t>(values.size());
  if (count == 0) return 0;
  cuda::DeviceMemory memory;
  DDP_CUDA(cudaMalloc(memory.out(), sizeof(unsigned long long)));
  DDP_CUDA(cudaMemset(memory.get(), 0, sizeof(unsigned long long)));
  auto* wrong = static_cast<unsigned long long*>(memory.get());
  with_type(values, [&](auto* data) { wrong_kernel<<<blocks_for(count), kThreads>>>(data, count, expected, wrong); });
  unsigned long long result = 0;
  DDP_CUDA(cudaMemcpy(&result, wrong, sizeof(result), cudaMemcpyDeviceToHost));
  return result;
}

}  // namespace ddptrain::bench::gpu
