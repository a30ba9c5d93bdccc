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

struct PeerCopies::Lane {
  struct Queue {
    cuda::StreamHandle stream;
    cuda::EventHandle copied;
  };

  cudaStream_t stream;
  std::size_t first_flag;
  cuda::EventHandle ready;
  std::array<Queue, 2> queues;  ///< Beside the stream, because one copy engine is slow while kernels use the memory.

  Lane(cudaStream_t of, std::size_t flag) : stream(of), first_flag(flag) {
    DDP_CUDA(cudaEventCreateWithFlags(ready.out(), cudaEventDisableTiming));
    for (Queue& queue : queues) {
      DDP_CUDA(cudaStreamCreateWithFlags(queue.stream.out(), cudaStreamNonBlocking));
      DDP_CUDA(cudaEventCreateWithFlags(queue.copied.out(), cudaEventDisableTiming));
    }
  }
};

PeerCopies::PeerCopies(int rank, PeerMemory flags) : rank_(static_cast<std::size_t>(rank)), flags_(std::move(flags)) {}
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

PeerCopies::Lane& PeerCopies::lane_of(Stream stream) {
  const auto is_it = [&](const auto& lane) { return lane->stream == stream.handle; };
  const auto found = std::ranges::find_if(lanes_, is_it);
  if (found != lanes_.end()) return **found;
  DDP_CHECK(lanes_.size() < kMostStreams, "copies on more than {} streams", kMostStreams);
  const std::size_t first_flag = lanes_.size() * kPhases * flags_.of_rank.size();
  return *lanes_.emplace_back(std::make_unique<Lane>(static_cast<cudaStream_t>(stream.handle), first_flag));
}

void PeerCopies::swap_shards(const Tensor& from, const Tensor& to, Stream stream) {
  const std::size_t ranks = flags_.of_rank.size(), bytes = from.bytes() / ranks;
  Lane& lane = lane_of(stream);
  meet(Phase::begin, lane);
  send(to.as<char>() + rank_ * bytes, bytes, lane, [&](std::size_t peer) { return from.as<char>() + peer * bytes; });
  meet(Phase::end, lane);
}

void PeerCopies::gather_shards(const Tensor& to, Stream stream) {
  Lane& lane = lane_of(stream);
  meet(Phase::begin, lane);
  send_own_shard(to, lane);
  meet(Phase::end, lane);
}

void PeerCopies::gather_after_swap(const std::vector<Tensor>& all, Stream stream) {
  Lane& lane = lane_of(stream);
  for (const Tensor& to : all) send_own_shard(to, lane);
  meet(Phase::end_after_swap, lane);
}

void PeerCopies::send_own_shard(const Tensor& to, Lane& lane) {
  const std::size_t bytes = to.bytes() / flags_.of_rank.size();
  char* const mine = to.as<char>() + rank_ * bytes;
  send(mine, bytes, lane, [&](std::size_t) { return mine; });
}

template <class Shard>
void PeerCopies::send(char* place, std::size_t bytes, Lane& lane, const Shard& shard_for) {
  const std::size_t pieces = lane.queues.size() + 1;
  const auto begin_of = [&](std::size_t piece) {
    return piece < pieces ? bytes * piece / pieces / kPieceUnit * kPieceUnit : bytes;
  };
  const auto copy = [&](std::size_t piece, cudaStream_t queue) {
    const std::size_t begin = begin_of(piece), size = begin_of(piece + 1) - begin;
    for (std::size_t step = 1; step < flags_.of_rank.size(); ++step) {
      const std::size_t peer = (rank_ + step) % flags_.of_rank.size();
      DDP_CUDA(cudaMemcpyAsync(static_cast<char*>(address_on(peer, place)) + begin, shard_for(peer) + begin, size,
                               cudaMemcpyDeviceToDevice, queue));
    }
  };
  DDP_CUDA(cudaEventRecord(lane.ready.get(), lane.stream));
  for (std::size_t i = 0; i < lane.queues.size(); ++i) {
    const Lane::Queue& queue = lane.queues[i];
    if (begin_of(i) == begin_of(i + 1)) continue;
    DDP_CUDA(cudaStreamWaitEvent(queue.stream.get(), lane.ready.get(), 0));
    copy(i, queue.stream.get());
    DDP_CUDA(cudaEventRecord(queue.copied.get(), queue.stream.get()));
  }
  copy(pieces - 1, lane.stream);
  for (std::size_t i = 0; i < lane.queues.size(); ++i) {
    if (begin_of(i) == begin_of(i + 1)) continue;
    DDP_CUDA(cudaStreamWaitEvent(lane.stream, lane.queues[i].copied.get(), 0));
  }
}

/// A rank that is ahead cannot set the flag of a phase again before the others have taken it: a meeting with another
/// phase lies between.
void PeerCopies::meet(Phase phase, const Lane& lane) {
  const std::size_t ranks = flags_.of_rank.size(), first = lane.first_flag + static_cast<std::size_t>(phase) * ranks;
  const auto flags_of = [&](void* memory) { return static_cast<std::uint32_t*>(memory) + first; };
  std::vector<CUstreamBatchMemOpParams> operations;
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    if (peer != rank_) operations.push_back(write(flags_of(flags_.of_rank[peer]) + rank_, kArrived));
  }
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    if (peer == rank_) continue;
    operations.push_back(wait_for(flags_of(flags_.mine.data()) + peer, kArrived));
    operations.push_back(write(flags_of(flags_.mine.data()) + peer, 0));
  }
  const CUresult result = queue_in_order(lane.stream, operations);
  if (result != CUDA_SUCCESS) fail("cuStreamBatchMemOp failed with error {}", static_cast<int>(result));
}

}  // namespace ddptrain
