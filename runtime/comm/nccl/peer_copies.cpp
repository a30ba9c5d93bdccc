#include "runtime/comm/nccl/peer_copies.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <ranges>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/device/cuda/driver_function.h"

namespace ddptrain {
namespace {

constexpr std::uint32_t kArrived = 1;
constexpr std::size_t kPieceUnit = 64 * 1024;  // bytes

cudaStream_t queue(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

CUresult queue_in_order(cudaStream_t stream, std::vector<CUstreamBatchMemOpParams>& operations) {
  using Function = CUresult(CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned);
  static Function* const function = cuda::driver_function<Function>("cuStreamBatchMemOp");
  if (function == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return function(stream, static_cast<unsigned>(operations.size()), operations.data(), 0);
}

CUstreamBatchMemOpParams write(std::uint32_t* flag, std::uint32_t value) {
  CUstreamBatchMemOpParams operation = {};
  operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operation.writeValue.address = reinterpret_cast<CUdeviceptr>(flag);
  operation.writeValue.value = value;
  operation.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  return operation;
}

CUstreamBatchMemOpParams wait_for(std::uint32_t* flag, std::uint32_t value) {
  CUstreamBatchMemOpParams operation = {};
  operation.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operation.waitValue.address = reinterpret_cast<CUdeviceptr>(flag);
  operation.waitValue.value = value;
  operation.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  return operation;
}

}  // namespace

/// Several, because one copy engine is slow while kernels use the memory.
struct PeerCopies::Queues {
  struct Queue {
    cuda::StreamHandle stream;
    cuda::EventHandle copied;
  };

  cuda::EventHandle ready;
  std::array<Queue, 3> all;

  Queues() {
    DDP_CUDA(cudaEventCreateWithFlags(ready.out(), cudaEventDisableTiming));
    for (Queue& queue : all) {
      DDP_CUDA(cudaStreamCreateWithFlags(queue.stream.out(), cudaStreamNonBlocking));
      DDP_CUDA(cudaEventCreateWithFlags(queue.copied.out(), cudaEventDisableTiming));
    }
  }
};

PeerCopies::PeerCopies(int rank, PeerMemory flags)
    : rank_(static_cast<std::size_t>(rank)), flags_(std::move(flags)), queues_(std::make_unique<Queues>()) {}
PeerCopies::~PeerCopies() = default;

bool PeerCopies::are_supported() {
  cuda::DeviceMemory flag;
  DDP_CUDA(cudaMalloc(flag.out(), sizeof(std::uint32_t)));
  std::vector<CUstreamBatchMemOpParams> operations = {write(static_cast<std::uint32_t*>(flag.get()), kArrived)};
  const CUresult result = queue_in_order(nullptr, operations);
  DDP_CUDA(cudaDeviceSynchronize());
  return result == CUDA_SUCCESS;
}

void PeerCopies::add(const Buffer& mine, std::vector<void*> of_rank, const std::weak_ptr<void>& owner) {
  std::erase_if(memories_, [](const Memory& memory) { return memory.owner.expired(); });
  memories_.push_back({static_cast<const char*>(mine.data()), mine.bytes(), std::move(of_rank), owner});
}

const PeerCopies::Memory* PeerCopies::find(const void* address) const {
  const auto is_in = [&](const Memory& memory) {
    return !memory.owner.expired() && address >= memory.mine && address < memory.mine + memory.bytes;
  };
  const auto found = std::ranges::find_if(memories_, is_in);
  return found == memories_.end() ? nullptr : &*found;
}

void* PeerCopies::address_on(std::size_t rank, const void* address) const {
  const Memory& memory = *find(address);
  return static_cast<char*>(memory.of_rank[rank]) + (static_cast<const char*>(address) - memory.mine);
}

void PeerCopies::swap_shards(const Tensor& from, const Tensor& to, Stream stream) {
  const std::size_t ranks = flags_.of_rank.size(), bytes = from.bytes() / ranks;
  send(to.as<char>() + rank_ * bytes, bytes, stream, [&](std::size_t peer) { return from.as<char>() + peer * bytes; });
}

void PeerCopies::gather_shards(const Tensor& to, Stream stream) {
  const std::size_t ranks = flags_.of_rank.size(), bytes = to.bytes() / ranks;
  char* const mine = to.as<char>() + rank_ * bytes;
  send(mine, bytes, stream, [&](std::size_t) { return mine; });
}

template <class Shard>
void PeerCopies::send(char* place, std::size_t bytes, Stream stream, const Shard& shard_for) {
  const std::size_t ranks = flags_.of_rank.size(), pieces = queues_->all.size();
  meet(0, stream);
  DDP_CUDA(cudaEventRecord(queues_->ready.get(), queue(stream)));
  for (std::size_t i = 0; i < pieces; ++i) {
    const Queues::Queue& of_piece = queues_->all[i];
    const std::size_t first = bytes * i / pieces / kPieceUnit * kPieceUnit;
    const std::size_t end = i + 1 < pieces ? bytes * (i + 1) / pieces / kPieceUnit * kPieceUnit : bytes;
    if (first == end) continue;
    DDP_CUDA(cudaStreamWaitEvent(of_piece.stream.get(), queues_->ready.get(), 0));
    for (std::size_t step = 1; step < ranks; ++step) {
      const std::size_t peer = (rank_ + step) % ranks;
      DDP_CUDA(cudaMemcpyAsync(static_cast<char*>(address_on(peer, place)) + first, shard_for(peer) + first,
                               end - first, cudaMemcpyDeviceToDevice, of_piece.stream.get()));
    }
    DDP_CUDA(cudaEventRecord(of_piece.copied.get(), of_piece.stream.get()));
    DDP_CUDA(cudaStreamWaitEvent(queue(stream), of_piece.copied.get(), 0));
  }
  meet(1, stream);
}

/// A rank that is ahead cannot set the flag of a phase again before the others have taken it: the other phase lies
/// between.
void PeerCopies::meet(std::size_t phase, Stream stream) {
  const std::size_t ranks = flags_.of_rank.size();
  auto* const mine = static_cast<std::uint32_t*>(flags_.mine.data());
  std::vector<CUstreamBatchMemOpParams> operations;
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    auto* const of_peer = static_cast<std::uint32_t*>(flags_.of_rank[peer]);
    if (peer != rank_) operations.push_back(write(of_peer + phase * ranks + rank_, kArrived));
  }
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    if (peer == rank_) continue;
    operations.push_back(wait_for(mine + phase * ranks + peer, kArrived));
    operations.push_back(write(mine + phase * ranks + peer, 0));
  }
  const CUresult result = queue_in_order(queue(stream), operations);
  if (result != CUDA_SUCCESS) fail("cuStreamBatchMemOp failed with error {}", static_cast<int>(result));
}

}  // namespace ddptrain
