#pragma once

#include <cuda.h>

#include <cstdint>

#include "runtime/ops/cuda/mma.cuh"

/// Copies from global to shared memory that one thread starts for all, and barriers in shared memory that count their
/// bytes (PTX ISA, "cp.async.bulk", "mbarrier"). Code of 9.0 and newer has them.

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
__device__ __forceinline__ void arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/// Arrives at the barrier at the same place of thread block `block` of the cluster.
__device__ __forceinline__ void arrive_in_cluster(std::uint64_t* barrier, int block) {
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(shared_address(barrier)),
      "r"(block)
      : "memory");
}
/// Waits for all threads of the cluster.
__device__ __forceinline__ void meet_cluster() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
/// What L2 does with lines that are read: policies of PTX createpolicy.
enum class CachePolicy : std::uint64_t { normal = 0x1000000000000000, evict_first = 0x12F0000000000000 };

/// Copies the tile of the map's matrix that begins at (row, column). `to`: aligned to 1024 bytes, if the map swizzles.
__device__ __forceinline__ void load_tile(void* to, const CUtensorMap& map, int column, int row, std::uint64_t* barrier,
                                          CachePolicy policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(static_cast<std::uint64_t>(policy))
      : "memory");
}
/// The same for all `kBlocks` thread blocks of the cluster: each gets the tile at the same place of its shared memory,
/// and its own barrier counts the bytes.
template <int kBlocks>
__device__ __forceinline__ void load_tile_for_all(void* to, const CUtensorMap& map, int column, int row,
                                                  std::uint64_t* barrier, CachePolicy policy) {
  constexpr std::uint16_t kAll = (1 << kBlocks) - 1;
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(shared_address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"(kAll), "l"(static_cast<std::uint64_t>(policy))
      : "memory");
}
/// Copies a tile from shared memory, after fence_async_proxy() in the threads that wrote it. What lies beyond the
/// matrix is left out. The copies that a thread starts until end_stores() are a group.
__device__ __forceinline__ void store_tile(const void* from, const CUtensorMap& map, int column, int row,
                                           CachePolicy policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%2, %3}], [%1], %4;" ::"l"(&map),
      "r"(shared_address(from)), "r"(column), "r"(row), "l"(static_cast<std::uint64_t>(policy))
      : "memory");
}
__device__ __forceinline__ void end_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Until all but the latest kPending groups of this thread's stores have read shared memory.
template <int kPending>
__device__ __forceinline__ void await_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
/// Both addresses are multiples of 16, `count` of 4.
__device__ __forceinline__ void load_floats(float* to, const float* from, int count, std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(count * 4), "r"(shared_address(barrier))
               : "memory");
}

}  // namespace ddptrain::cuda
