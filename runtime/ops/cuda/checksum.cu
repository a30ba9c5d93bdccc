#include <algorithm>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/checksum.h"
#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/cuda/reduce.cuh"

namespace ddptrain::cuda {

namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kMostBlocks = 2048;

__device__ std::uint64_t word_at(const std::uint8_t* data, std::size_t bytes) {
  if (bytes >= 8 && reinterpret_cast<std::uintptr_t>(data) % 8 == 0) {
    return *reinterpret_cast<const std::uint64_t*>(data);
  }
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < 8 && i < bytes; ++i) word |= static_cast<std::uint64_t>(data[i]) << (8 * i);
  return word;
}

/// Integers add up to the same in any order.
__global__ void __launch_bounds__(kThreads)
    checksum_kernel(const std::uint8_t* data, std::size_t bytes, unsigned long long* sum) {
  __shared__ unsigned long long shared[kThreads / 32];
  unsigned long long mine = 0;
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * kThreads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x; 8 * i < bytes; i += stride) {
    mine += at_place(word_at(data + 8 * i, bytes - 8 * i), i);
  }
  mine = block_sum<kThreads>(mine, shared);
  if (threadIdx.x == 0) atomicAdd(sum, mine);
}

class CudaChecksum final : public ChecksumOps, CudaOps {
 public:
  using CudaOps::CudaOps;

  void add_checksum(const Tensor& values, std::uint64_t* sum) override {
    const std::size_t bytes = values.bytes();
    if (bytes == 0) return;
    const auto words = static_cast<std::int64_t>((bytes + 7) / 8);
    const std::uint32_t blocks = std::min(ceil_div(words, kThreads), kMostBlocks);
    launch_kernel(checksum_kernel, blocks, kThreads, 0, stream(), values.as<std::uint8_t>(), bytes,
                  reinterpret_cast<unsigned long long*>(sum));
  }
};

}  // namespace

}  // namespace ddptrain::cuda

std::unique_ptr<ddptrain::ChecksumOps> ddptrain::ChecksumOps::on_cuda(Device& device) {
  return std::make_unique<cuda::CudaChecksum>(device);
}
