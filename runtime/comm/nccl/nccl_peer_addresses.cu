#include "runtime/comm/nccl/nccl_peer_addresses.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "runtime/device/cuda/cuda_utils.h"

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
#include <nccl_device.h>
#endif

namespace ddptrain {
namespace {

constexpr int kMostRanks = 1024;  // of one thread block

bool is_device_memory(const void* address) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, address) == cudaSuccess) return attributes.type == cudaMemoryTypeDevice;
  cudaGetLastError();
  return false;
}

__device__ std::uint64_t pattern(int from, int to) { return 0x9E3779B97F4A7C15u * (1024u * from + to + 1u); }

__global__ void write_to_peers(void* const* addresses, int rank, int ranks) {
  const int to = static_cast<int>(threadIdx.x);
  if (to < ranks) static_cast<std::uint64_t*>(addresses[to])[rank] = pattern(rank, to);
  __threadfence_system();
}

/// Counts what has not arrived, and leaves zeros.
__global__ void check_arrivals(std::uint64_t* mine, int rank, int ranks, int* missing) {
  const int from = static_cast<int>(threadIdx.x);
  if (from >= ranks) return;
  if (static_cast<volatile std::uint64_t*>(mine)[from] != pattern(from, rank)) atomicAdd(missing, 1);
  mine[from] = 0;
}

}  // namespace

bool is_symmetric(ncclWindow_t window) { return window != nullptr && is_device_memory(window); }

bool peers_exchange(const std::vector<void*>& addresses, int rank, const std::function<void()>& barrier) {
  const int ranks = static_cast<int>(addresses.size());
  const std::size_t bytes = addresses.size() * sizeof(void*);
  cuda::DeviceMemory table;
  cuda::DeviceMemory missing;
  DDP_CUDA(cudaMalloc(table.out(), bytes));
  DDP_CUDA(cudaMalloc(missing.out(), sizeof(int)));
  DDP_CUDA(cudaMemcpy(table.get(), addresses.data(), bytes, cudaMemcpyHostToDevice));
  DDP_CUDA(cudaMemset(missing.get(), 0, sizeof(int)));
  write_to_peers<<<1, ranks>>>(static_cast<void* const*>(table.get()), rank, ranks);
  DDP_CUDA(cudaGetLastError());
  DDP_CUDA(cudaDeviceSynchronize());
  barrier();
  auto* mine = static_cast<std::uint64_t*>(addresses[static_cast<std::size_t>(rank)]);
  check_arrivals<<<1, ranks>>>(mine, rank, ranks, static_cast<int*>(missing.get()));
  DDP_CUDA(cudaGetLastError());
  int count = 0;
  DDP_CUDA(cudaMemcpy(&count, missing.get(), sizeof(int), cudaMemcpyDeviceToHost));
  return count == 0;
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)

namespace {

__global__ void find_addresses(ncclWindow_t window, int ranks, void** addresses) {
  const int rank = static_cast<int>(threadIdx.x);
  if (rank < ranks) addresses[rank] = ncclGetLsaPointer(window, 0, rank);
}

}  // namespace

std::vector<void*> nccl_peer_addresses(ncclComm_t comm, ncclWindow_t window, int ranks) {
  if (ranks > kMostRanks || !is_symmetric(window) || ncclTeamLsa(comm).nRanks != ranks) return {};
  std::vector<void*> addresses(static_cast<std::size_t>(ranks));
  const std::size_t bytes = addresses.size() * sizeof(void*);
  cuda::DeviceMemory device;
  DDP_CUDA(cudaMalloc(device.out(), bytes));
  find_addresses<<<1, ranks>>>(window, ranks, static_cast<void**>(device.get()));
  DDP_CUDA(cudaGetLastError());
  DDP_CUDA(cudaMemcpy(addresses.data(), device.get(), bytes, cudaMemcpyDeviceToHost));
  return std::all_of(addresses.begin(), addresses.end(), is_device_memory) ? addresses : std::vector<void*>{};
}

#else

std::vector<void*> nccl_peer_addresses(ncclComm_t, ncclWindow_t, int) { return {}; }

#endif

}  // namespace ddptrain
