#include <algorithm>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/ops/checksum.h"
#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/cuda/reduce.cuh"

namespace ddptrain {

namespace cuda {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kMostBlocks = 2048;

__device__ Digest128 digest_of_piece(const std::uint8_t* data, std::size_t bytes, const Xxh3Keys& keys) {
  if (bytes >= kXxh3PieceBytes && reinterpret_cast<std::uintptr_t>(data) % sizeof(std::uint64_t) == 0) {
    const auto* words = reinterpret_cast<const std::uint64_t*>(data);
    return xxh3_128_of_piece([words](int i) { return words[i]; }, keys);
  }
  const auto word = [data, bytes](int i) {
    std::uint64_t value = 0;
    for (std::size_t byte = 0; byte < 8 && 8 * i + byte < bytes; ++byte) {
      value |= static_cast<std::uint64_t>(data[8 * i + byte]) << (8 * byte);
    }
    return value;
  };
  return xxh3_128_of_piece(word, keys);
}

/// A thread takes whole pieces. Integers add up to the same in any order.
__global__ void __launch_bounds__(kThreads)
    checksum_kernel(const std::uint8_t* data, std::size_t bytes, std::uint64_t first_piece, Xxh3Keys keys,
                    unsigned long long* low, unsigned long long* high) {
  __shared__ unsigned long long shared[kThreads / 32];
  unsigned long long mine_low = 0, mine_high = 0;
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * kThreads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x; i * kXxh3PieceBytes < bytes;
       i += stride) {
    const std::size_t at = i * kXxh3PieceBytes;
    const Digest128 piece = digest_of_piece(data + at, bytes - at, keys);
    mine_low += at_piece(piece.low, first_piece + i);
    mine_high += at_piece(piece.high, first_piece + i);
  }
  mine_low = block_sum<kThreads>(mine_low, shared);
  mine_high = block_sum<kThreads>(mine_high, shared);
  if (threadIdx.x == 0) {
    atomicAdd(low, mine_low);
    atomicAdd(high, mine_high);
  }
}

}  // namespace
}  // namespace cuda

namespace {

class CudaChecksum final : public ChecksumOps, CudaOps {
 public:
  explicit CudaChecksum(Device& device) : CudaOps(device), keys_(xxh3_keys()) {}

  std::uint64_t add_checksum(const Tensor& values, std::uint64_t first_piece, Digest128* sum) override {
    const std::size_t bytes = values.bytes();
    if (bytes == 0) return first_piece;
    const auto pieces = static_cast<std::int64_t>((bytes + kXxh3PieceBytes - 1) / kXxh3PieceBytes);
    const std::uint32_t blocks = std::min(cuda::ceil_div(pieces, cuda::kThreads), cuda::kMostBlocks);
    cuda::checksum_kernel<<<blocks, cuda::kThreads, 0, stream()>>>(
        values.as<const std::uint8_t>(), bytes, first_piece, keys_, reinterpret_cast<unsigned long long*>(&sum->low),
        reinterpret_cast<unsigned long long*>(&sum->high));
    DDP_CUDA(cudaGetLastError());
    return first_piece + static_cast<std::uint64_t>(pieces);
  }

 private:
  Xxh3Keys keys_;
};

}  // namespace

std::unique_ptr<ChecksumOps> ChecksumOps::on_cuda(Device& device) { return std::make_unique<CudaChecksum>(device); }

}  // namespace ddptrain
