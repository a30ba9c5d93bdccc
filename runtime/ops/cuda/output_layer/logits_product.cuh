#pragma once

#include <numbers>

#include "runtime/ops/cuda/gemm/tile_product.cuh"
#include "runtime/ops/cuda/output_layer/softmax_part.cuh"
#include "runtime/ops/cuda/ptx/intrinsics.cuh"

// The finishing warps of a product (tile_product.cuh) write logits, and what the softmax needs to know of each row of a
// tile. So no pass over the logits is for that alone.

namespace ddptrain::cuda::logits_product {

using namespace tile_product;

struct Problem {
  bf16* logits;        ///< [rows, columns]
  SoftmaxPart* parts;  ///< [tiles side by side, rows]
  int rows, columns;   ///< Columns are a multiple of 8.
  int vocabulary;      ///< Columns that count.
  Tiles tiles;
};

/// 8 columns of each piece of a row of a tile.
using Chunks = uint4[kPieces];

__device__ __forceinline__ std::uint32_t largest_of(const uint4& chunk) {
  return max_bf16(max_bf16(chunk.x, chunk.y), max_bf16(chunk.z, chunk.w));
}
__device__ __forceinline__ float exponentials(std::uint32_t pair, float shift) {
  const float2 logits = unpack_bf16(pair);
  return shifted_exponential(logits.x, shift) + shifted_exponential(logits.y, shift);
}

/// Of a row that eight neighbouring lanes hold.
__device__ __forceinline__ SoftmaxPart part_of(const Chunks& chunks) {
  std::uint32_t most = largest_of(chunks[0]);
#pragma unroll
  for (int piece = 1; piece < kPieces; ++piece) most = max_bf16(most, largest_of(chunks[piece]));
  const float2 both = unpack_bf16(most);
  float largest = fmaxf(both.x, both.y);
#pragma unroll
  for (int lanes = 1; lanes < 8; lanes *= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, lanes));
  const float shift = shift_for(largest);
  float totals[2] = {};
#pragma unroll
  for (const uint4& chunk : chunks) {
    totals[0] += exponentials(chunk.x, shift) + exponentials(chunk.y, shift);
    totals[1] += exponentials(chunk.z, shift) + exponentials(chunk.w, shift);
  }
  float total = totals[0] + totals[1];
#pragma unroll
  for (int lanes = 1; lanes < 8; lanes *= 2) total += __shfl_xor_sync(kAllLanes, total, lanes);
  return {largest, total};
}

/// Logits that do not count become -infinity. `columns`: how many of the chunk's columns, from the first on, count.
__device__ __forceinline__ void mask(uint4& chunk, int columns) {
  constexpr std::uint32_t kNone = 0xFF80FF80u;  // a pair of -infinity
  const auto masked = [&](std::uint32_t pair, int first) {
    if (columns <= first) return kNone;
    return columns == first + 1 ? (pair & 0xFFFFu) | (kNone & 0xFFFF0000u) : pair;
  };
  chunk = make_uint4(masked(chunk.x, 0), masked(chunk.y, 2), masked(chunk.z, 4), masked(chunk.w, 6));
}

/// A warp finishes four rows at a time. `warp`: of those that finish.
template <int kFinishers>
__device__ __forceinline__ void finish(const Problem& p, const Shared& shared, int warp, int first_row, int tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int column = tile * kColumns + lane % 8 * 8;
  const bool counts = (tile + 1) * kColumns <= p.vocabulary;  // all of the tile
#pragma unroll 2
  for (int item = warp; item < kRows / 4; item += kFinishers) {
    const int in_tile = item * 4 + lane / 8, row = first_row + in_tile;
    bf16* const to = p.logits + static_cast<std::size_t>(row) * static_cast<std::size_t>(p.columns) + column;
    Chunks chunks;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      chunks[piece] = load_shared(chunk_at(shared_address(shared.sums[piece]), in_tile, lane % 8));
      const int at = piece * kPieceColumns;
      if (row < p.rows && column + at < p.columns) store_at_once(reinterpret_cast<uint4*>(to + at), chunks[piece]);
      if (!counts) mask(chunks[piece], p.vocabulary - column - at);
    }
    const SoftmaxPart part = part_of(chunks);
    if (row < p.rows && lane % 8 == 0) p.parts[static_cast<std::size_t>(tile) * p.rows + row] = part;
  }
}

/// maps: of x [rows, depth] and of the weight [columns, depth], in tiles of 128 rows.
template <int kFinishers>
__global__ void __launch_bounds__(Roles<kFinishers>::kThreads, 1)
    logits_product_kernel(const __grid_constant__ Maps maps, const Problem p) {
#if DDP_WGMMA
  Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared_memory());
  run<kFinishers, false>(
      maps.left, p.tiles, shared,
      [&](int stage, int tile, int k) {
        const auto block = static_cast<int>(block_in_cluster());
        char* const half = shared.right[stage] + block * kRightBytes / 2;
        const int row = tile * kColumns + block * kColumns / 2;
        load_tile_to(kBoth, half, maps.right, k, row, &shared.full[stage], CachePolicy::normal);
      },
      [&](int warp, int row, int tile, const auto& await_sums) {
        await_sums();
        finish<kFinishers>(p, shared, warp, row, tile);
      });
#endif
}

}  // namespace ddptrain::cuda::logits_product
