#include "runtime/ops/cuda/optimizers/meet.h"

#include "runtime/device/cuda/cuda_utils.h"

// In terms of PTX's memory model: the kernels before this one in its stream have ended, so their writes happen before
// the fence; the release of system scope that follows orders them before the round that it stores, and the acquire
// that reads this round orders them before everything after it, the kernels behind this one included. A sender may be a
// round ahead of the reader, never two: it waits for the reader's round in between.

namespace ddptrain::cuda {
namespace {

__device__ __forceinline__ void send_round(std::uint32_t* to, std::uint32_t round) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(round) : "memory");
}

__device__ __forceinline__ std::uint32_t received_round(const std::uint32_t* from) {
  std::uint32_t round;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(round) : "l"(from) : "memory");
  return round;
}

/// Thread r meets rank r.
__global__ void meet_kernel(PeerInboxes peers) {
  auto* mine = static_cast<std::uint32_t*>(peers.of_rank[peers.rank]);
  const std::uint32_t round = mine[PeerInboxes::kMaxRanks] + 1;
  const int peer = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (peer != peers.rank) {
    __threadfence_system();
    send_round(static_cast<std::uint32_t*>(peers.of_rank[peer]) + peers.rank, round);
    while (static_cast<std::int32_t>(received_round(mine + peer) - round) < 0) {
    }
  }
  __syncthreads();
  if (peer == peers.rank) mine[PeerInboxes::kMaxRanks] = round;
}

}  // namespace

void meet(const PeerInboxes& peers, cudaStream_t stream) {
  meet_kernel<<<1, peers.size, 0, stream>>>(peers);
  DDP_CUDA(cudaGetLastError());
}

}  // namespace ddptrain::cuda
