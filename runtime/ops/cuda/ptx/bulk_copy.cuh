#pragma once

#include <cuda.h>

#include <cstdint>

#include "runtime/ops/cuda/ptx/intrinsics.cuh"
#include "runtime/ops/cuda/ptx/mma.cuh"

/// Copies between global and shared memory that one thread starts for all, and barriers in shared memory that count
/// their bytes (PTX ISA, "cp.async.bulk", "mbarrier"). Code of 9.0 and newer has them.

namespace ddptrain::cuda {

/// A barrier whose phase ends when `arrivals` threads have arrived and all bytes that they expected have come.
__device__ __forceinline__ void init_barrier(std::uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
/// Makes initialised barriers visible to copies.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/// Arrives, and lets the phase wait for `bytes` more.
__device__ __forceinline__ void expect_bytes(std::uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
/// Until the phase of that parity has ended; the first phase has parity 0.
__device__ __forceinline__ void await_phase(std::uint64_t* barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
/// Copies the tile of the map's matrix that begins at (row, column). `to`: aligned to 1024 bytes, if the map swizzles.
__device__ __forceinline__ void load_tile(void* to, const CUtensorMap& map, int column, int row, std::uint64_t* barrier,
                                          CachePolicy policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(static_cast<std::uint64_t>(policy))
      : "memory");
}
/// The same for each block of the cluster whose bit is set in `blocks`: the copy has the same place in its shared
/// memory, and its barrier at the place of `barrier` gets the bytes.
__device__ __forceinline__ void load_tile_to(std::uint16_t blocks, void* to, const CUtensorMap& map, int column,
                                             int row, std::uint64_t* barrier, CachePolicy policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(shared_address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"(blocks),
      "l"(static_cast<std::uint64_t>(policy))
      : "memory");
}
/// Arrives at the barrier that block `block` of the cluster has at the place of `barrier`. Other blocks may not see
/// what this thread has written before.
__device__ __forceinline__ void arrive_in(std::uint32_t block, std::uint64_t* barrier) {
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(shared_address(barrier)),
      "r"(block)
      : "memory");
}
__device__ __forceinline__ std::uint32_t block_in_cluster() {
  std::uint32_t block;
  asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(block));
  return block;
}
/// All threads of all blocks of the cluster wait for each other.
__device__ __forceinline__ void synchronize_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/// synchronize_cluster() in two steps, which all threads take.
__device__ __forceinline__ void arrive_at_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void await_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
/// The object that block `block` of the cluster, which must have started, has at the place of `object` in its shared
/// memory.
template <class T>
__device__ __forceinline__ T* in_block(std::uint32_t block, T* object) {
  T* there;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(object), "r"(block));
  return there;
}
/// Arrives at a barrier of this block.
__device__ __forceinline__ void arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/// Both addresses are multiples of 16, like `bytes`.
__device__ __forceinline__ void load_bytes(void* to, const void* from, int bytes, std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
/// The other way round. fence_async_proxy() comes before, in the threads that have written `from`.
__device__ __forceinline__ void store_bytes(void* to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
/// Until the sources of this thread's store_bytes() have been read.
__device__ __forceinline__ void await_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
/// Until they have written.
__device__ __forceinline__ void await_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace ddptrain::cuda
