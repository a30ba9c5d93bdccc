#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "runtime/ops/cuda/attention/attention_head.cuh"
#include "runtime/ops/cuda/attention/attention_sizes.h"
#include "runtime/ops/cuda/ptx/bulk_copy.cuh"
#include "runtime/ops/cuda/ptx/intrinsics.cuh"
#include "runtime/ops/cuda/ptx/mma.cuh"
#include "runtime/ops/cuda/ptx/wgmma.cuh"
#include "runtime/ops/cuda/swizzle.cuh"

// Code that the forward and the backward pass of attention with heads of 128 share. Tests also run it on the CPU
// (tests/emulated).

namespace ddptrain::cuda::attention_128 {

using attention::kLog2e;
using bf16 = __nv_bfloat16;

constexpr int kTiles = kHead / kColumns;     // side by side in a head
constexpr int kThreads = 128 * kWarpgroups;  // that multiply
constexpr int kWarps = kThreads / 32;
constexpr int kThreadsAndFetching = kThreads + 128;  // with a warpgroup of which a thread fetches
constexpr int kStepBytes = 16 * kColumns * 2;        // 16 rows of a tile

constexpr int kTaken = 240;  // registers of a thread that multiplies
constexpr int kLeft = 24;    // of another one
static_assert(kThreads * kTaken + 128 * kLeft <= kThreadsAndFetching * (65536 / kThreadsAndFetching / 8 * 8),
              "take_registers() would wait forever");

using HeadTiles = char[kTiles][kTileBytes];  // 64 rows of a head

__device__ __forceinline__ void load_rows(HeadTiles& to, const CUtensorMap& map, int column, int row,
                                          std::uint64_t* full) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    load_tile(to[i], map, column + i * kColumns, row, full, CachePolicy::normal);
  }
}

/// Writes 64 rows of a head, by way of `staging`, a tile of the warpgroup. A warp writes its 16 rows, `stride` elements
/// apart. `factor`: of the rows of this thread's elements 4 i and 4 i + 1, and of 4 i + 2 and 4 i + 3.
__device__ __forceinline__ void put_rows(const float (&d)[64], const float (&factor)[2], bf16* to, int stride,
                                         char* staging) {
  constexpr int kChunks = 8;  // of 16 bytes, in a row of a tile
  const int lane = static_cast<int>(threadIdx.x) % 32, warp_row = static_cast<int>(threadIdx.x) % 128 / 32 * 16;
  const std::uint32_t address = shared_address(staging);
#pragma unroll
  for (int half = 0; half < kTiles; ++half) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float* x = d + 32 * half + 8 * k;
      std::uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i] = pack_bf16(x[2 * i] * factor[i % 2], x[2 * i + 1] * factor[i % 2]);
      stmatrix_x4(chunk_at(address, warp_row + lane % 16, 2 * k + lane / 16), pairs);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kChunks / 2; ++i) {
      const int row = warp_row + 4 * i + lane / kChunks, chunk = lane % kChunks;
      store_at_once(reinterpret_cast<uint4*>(to + static_cast<std::size_t>(row) * stride + half * kColumns + 8 * chunk),
                    load_shared(chunk_at(address, row, chunk)));
    }
    __syncwarp();
  }
}

/// By each warp.
__device__ __forceinline__ void release(std::uint64_t* barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(barrier);
}

/// The column of element `i` of a thread's sums in 64 rows, less its row. Element 0 counts as 0.
constexpr int across(int i) { return i / 4 * 8 + i % 2 - i / 2 % 2 * 8; }
/// Of the first element.
__device__ __forceinline__ int first_across() {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp_row = static_cast<int>(threadIdx.x) % 128 / 32 * 16;
  return 2 * (lane % 4) - warp_row - lane / 4;
}

/// Starts a group: d = a b^T, of 64 and of 64 or 128 rows of a head. Tiles of b lie `tile_bytes` apart.
template <int kCount>
__device__ __forceinline__ void start_products(float (&d)[kCount], const void* a, const void* b, int tile_bytes) {
  static_assert(kCount == 32 || kCount == 64);
  const SwizzledOperand left(shared_address(a)), right(shared_address(b));
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kHead / 16; ++k) {
    const SwizzledOperand of_a = left + (k / 4 * kTileBytes + k % 4 * 32);
    const SwizzledOperand of_b = right + (k / 4 * tile_bytes + k % 4 * 32);
    if constexpr (kCount == 32) {
      wgmma_m64n64k16(d, of_a, of_b, k > 0);
    } else {
      wgmma_m64n128k16<false>(d, of_a, of_b, k > 0);
    }
  }
  wgmma_commit();
}

}  // namespace ddptrain::cuda::attention_128
