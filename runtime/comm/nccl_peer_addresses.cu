#include "runtime/comm/nccl_peer_addresses.h"

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)

#include <cuda_runtime.h>
#include <nccl_device.h>

#include "runtime/device/cuda/cuda_utils.h"

namespace ddptrain {
namespace {

__global__ void find_addresses(ncclWindow_t window, int ranks, void** addresses) {
  const int rank = static_cast<int>(threadIdx.x);
  if (rank < ranks) addresses[rank] = ncclGetLsaPointer(window, 0, rank);
}

}  // namespace

std::vector<void*> nccl_peer_addresses(ncclComm_t comm, ncclWindow_t window, int ranks) {
  constexpr int kMostRanks = 1024;
  if (ranks > kMostRanks || ncclTeamLsa(comm).nRanks != ranks) return {};
  std::vector<void*> addresses(static_cast<std::size_t>(ranks));
  const std::size_t bytes = addresses.size() * sizeof(void*);
  cuda::DeviceMemory device;
  DDP_CUDA(cudaMalloc(device.out(), bytes));
  find_addresses<<<1, ranks>>>(window, ranks, static_cast<void**>(device.get()));
  DDP_CUDA(cudaGetLastError());
  DDP_CUDA(cudaMemcpy(addresses.data(), device.get(), bytes, cudaMemcpyDeviceToHost));
  return addresses;
}

}  // namespace ddptrain

#else

namespace ddptrain {

std::vector<void*> nccl_peer_addresses(ncclComm_t, ncclWindow_t, int) { return {}; }

}  // namespace ddptrain

#endif
