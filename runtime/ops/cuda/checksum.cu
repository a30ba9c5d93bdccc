#include "runtime/ops/checksum.h"

#include <algorithm>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/cuda/reduce.cuh"

namespace ddptrain {

namespace cuda {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kMostBlocks = 1024;

/// Integers add up to the same in any order.
template <class Bits>
__global__ void __launch_bounds__(kThreads)
    checksum_kernel(const Bits* values, std::size_t count, unsigned long long* sum) {
  __shared__ unsigned long long shared[kThreads / 32];
  unsigned long long mine = 0;
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * kThreads;
#pragma unroll 4
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += stride) {
    mine += checksum_of(values[i], i);
  }
  mine = block_sum<kThreads>(mine, shared);
  if (threadIdx.x == 0) atomicAdd(sum, mine);
}

template <class Bits>
void add_checksum(const Tensor& values, std::uint64_t* sum, cudaStream_t stream) {
  const auto count = static_cast<std::size_t>(values.size());
  const std::uint32_t blocks = std::min(ceil_div(values.size(), kThreads * 4), kMostBlocks);
  checksum_kernel<<<blocks, kThreads, 0, stream>>>(values.as<const Bits>(), count,
                                                   reinterpret_cast<unsigned long long*>(sum));
  DDP_CUDA(cudaGetLastError());
}

}  // namespace
}  // namespace cuda

namespace {

class CudaChecksum final : public ChecksumOps, CudaOps {
 public:
  using CudaOps::CudaOps;

  void add_checksum(const Tensor& values, std::uint64_t* sum) override {
    if (values.size() == 0) return;
    switch (size_of(values.dtype)) {
      case 1:
        return cuda::add_checksum<std::uint8_t>(values, sum, stream());
      case 2:
        return cuda::add_checksum<std::uint16_t>(values, sum, stream());
      case 4:
        return cuda::add_checksum<std::uint32_t>(values, sum, stream());
      default:
        return cuda::add_checksum<std::uint64_t>(values, sum, stream());
    }
  }
};

}  // namespace

std::unique_ptr<ChecksumOps> ChecksumOps::on_cuda(Device& device) { return std::make_unique<CudaChecksum>(device); }

}  // namespace ddptrain
