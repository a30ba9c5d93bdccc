#pragma once

#include <type_traits>

#include "runtime/ops/cuda/gemm/gelu.cuh"
#include "runtime/ops/cuda/gemm/tile_product.cuh"

// The finishing warps of a product (tile_product.cuh) write the product, with its bias, and the GELU of it (forward).
// Or they read the layer's `pre`, write its gradient, and add that up over the rows of the tile (backward).

namespace ddptrain::cuda::gelu_product {

using namespace tile_product;

enum class Pass : std::uint8_t { forward, backward };

/// The right operand is [hidden, depth] forward and [depth, hidden] backward.
struct Problem {
  const bf16* bias;  ///< [hidden]; null backward.
  bf16* pre;         ///< Backward only reads it.
  bf16* result;      ///< y or dpre
  float* sums;       ///< Backward: [2 pairs of tiles, hidden], of dpre over the rows of a tile.
  int rows, hidden;
  Tiles tiles;
};

constexpr int kForwardFinishers = 3, kBackwardFinishers = 7;  // warps
template <Pass kPass>
constexpr int kFinishers = kPass == Pass::forward ? kForwardFinishers : kBackwardFinishers;

constexpr int kMostHidden = 8192;  // of the forward pass

struct ForwardShared : Shared {
  bf16 bias[kMostHidden];  // what lies beyond the layer's is added to columns that do not exist
};

/// Of the rows of the finishing warps.
using TileSums = float[kBackwardFinishers][kColumns];

struct BackwardShared : Shared {
  TileSums column_sums[2];  // for two tiles in turn
};

template <Pass kPass>
using SharedOf = std::conditional_t<kPass == Pass::forward, ForwardShared, BackwardShared>;

__device__ __forceinline__ void copy_bias(const Problem& p, ForwardShared& shared, int threads) {
  for (int i = static_cast<int>(threadIdx.x) * 8; i < p.hidden; i += threads * 8) {
    *reinterpret_cast<uint4*>(shared.bias + i) = *reinterpret_cast<const uint4*>(p.bias + i);
  }
}

__device__ __forceinline__ std::uint32_t gelu_pair(std::uint32_t pres) {
  const float2 pre = unpack_bf16(pres);
  return pack_bf16(gelu_of<bf16>(pre.x), gelu_of<bf16>(pre.y));
}
__device__ __forceinline__ uint4 gelu_pack(const uint4& pre) {
  return {gelu_pair(pre.x), gelu_pair(pre.y), gelu_pair(pre.z), gelu_pair(pre.w)};
}
/// Adds the gradients to sum[0] and sum[1].
__device__ __forceinline__ std::uint32_t gradient_pair(std::uint32_t pres, std::uint32_t dys, float* sum) {
  const float2 pre = unpack_bf16(pres), dy = unpack_bf16(dys);
  const float first = dy.x * gelu_slope_of<bf16>(pre.x), second = dy.y * gelu_slope_of<bf16>(pre.y);
  sum[0] += first;
  sum[1] += second;
  return pack_bf16(first, second);
}
__device__ __forceinline__ uint4 gradient_pack(const uint4& pre, const uint4& dy, float (&sum)[8]) {
  return {gradient_pair(pre.x, dy.x, sum), gradient_pair(pre.y, dy.y, sum + 2), gradient_pair(pre.z, dy.z, sum + 4),
          gradient_pair(pre.w, dy.w, sum + 6)};
}

/// A tile, from its sums. `warp`: of those that finish.
__device__ __forceinline__ void finish_forward(const Problem& p, const Strip& strip, int warp) {
#pragma unroll 1
  for (int group = warp; group < Strip::kGroups; group += kForwardFinishers) {
    uint4 pre[kPieces], y[kPieces];
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) pre[piece] = strip.sums_of(group, piece);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) y[piece] = gelu_pack(pre[piece]);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      strip.write(p.pre, p.hidden, group, piece, pre[piece]);
      strip.write(p.result, p.hidden, group, piece, y[piece]);
    }
  }
}

/// Of a finishing thread, over its rows: of its 8 columns in each piece.
using ThreadSums = float[kPieces][8];

/// Adds up the four lanes of a warp that have the same columns: `total` has the sums over the warp's rows. Each of the
/// four lanes writes one piece.
__device__ __forceinline__ void add_lanes(const ThreadSums& sums, float (&total)[kColumns]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 8;
  float* const to = total + row * kPieceColumns + lane % 8 * 8;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float half[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float other = __shfl_xor_sync(0xFFFFFFFF, row >= 2 ? sums[j][i] : sums[2 + j][i], 16);
      half[j] = (row >= 2 ? sums[2 + j][i] : sums[j][i]) + other;
    }
    const float other = __shfl_xor_sync(0xFFFFFFFF, row % 2 == 1 ? half[0] : half[1], 8);
    to[i] = (row % 2 == 1 ? half[1] : half[0]) + other;
  }
}

/// Adds up the finishing warps, in their order, when all have written `column_sums`. They write the sums of the tile.
__device__ __forceinline__ void add_warps(const Problem& p, const TileSums& column_sums, int thread, int row,
                                          int column) {
  constexpr int kBarrier = 1, kThreads = 32 * kBackwardFinishers;
  barrier_wait(kBarrier, kThreads);
  for (int i = thread; i < min(kColumns, p.hidden - column); i += kThreads) {
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kBackwardFinishers; ++warp) sum += column_sums[warp][i];
    p.sums[static_cast<std::size_t>(row / kRows) * p.hidden + column + i] = sum;
  }
}

/// A group of pre, on its way to registers.
using Group = uint4[kPieces];

__device__ __forceinline__ void read_pre(const Problem& p, const Strip& strip, int group, Group& pre) {
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) pre[piece] = strip.read(p.pre, p.hidden, group, piece);
}

/// The same. `pre` is the warp's first group. Each next one is read while a group is computed.
__device__ __forceinline__ void finish_backward(const Problem& p, const Strip& strip, int warp, Group& pre,
                                                ThreadSums& sums) {
#pragma unroll 1
  for (int group = warp; group < Strip::kGroups; group += kBackwardFinishers) {
    uint4 d[kPieces];
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) d[piece] = strip.sums_of(group, piece);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) d[piece] = gradient_pack(pre[piece], d[piece], sums[piece]);
    read_pre(p, strip, group + kBackwardFinishers, pre);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) strip.write(p.result, p.hidden, group, piece, d[piece]);
  }
}

template <Pass kPass>
__global__ void __launch_bounds__(Roles<kFinishers<kPass>>::kThreads, 1)
    gelu_product_kernel(const __grid_constant__ Maps maps, const Problem p) {
#if DDP_WGMMA
  auto& shared = *reinterpret_cast<SharedOf<kPass>*>(dynamic_shared_memory());
  const auto strip_of = [&](const Spot& spot) {
    return Strip(shared, p.rows, p.hidden, spot.row, spot.tile * kColumns);
  };
  if constexpr (kPass == Pass::forward) {
    copy_bias(p, shared, Roles<kForwardFinishers>::kThreads);
    run<kForwardFinishers, false>(
        maps.left, p.tiles, shared,
        [&](int stage, int tile, int k) {
          const int first = tile * kColumns + static_cast<int>(block_in_cluster()) * kColumns / 2;
          fetch_columns_of_right(maps.right, shared, stage, first, k);
        },
        [&](float2 sums, int tile, int column) {
          const bf16* const from = shared.bias + tile * kColumns + column;
          const float2 bias = unpack_bf16(*reinterpret_cast<const std::uint32_t*>(from));
          return float2{sums.x + bias.x, sums.y + bias.y};
        },
        [&](int warp, const Spot& spot, const Spot&, const auto& await_sums, const auto& release) {
          await_sums();
          finish_forward(p, strip_of(spot), warp);
          release();
        });
  } else {
    int tiles = 0;  // that have begun
    Group pre;
    run<kBackwardFinishers, true>(
        maps.left, p.tiles, shared,
        [&](int stage, int tile, int k) { fetch_rows_of_right(maps.right, shared, stage, tile * kColumns, k); },
        WithoutBias{},
        [&](int warp, const Spot& spot, const Spot& next, const auto& await_sums, const auto& release) {
          if (tiles == 0) read_pre(p, strip_of(spot), warp, pre);
          TileSums& column_sums = shared.column_sums[tiles++ % 2];
          await_sums();
          ThreadSums sums = {};
          finish_backward(p, strip_of(spot), warp, pre, sums);
          release();
          read_pre(p, strip_of(next), warp, pre);
          add_lanes(sums, column_sums[warp]);
          add_warps(p, column_sums, warp * 32 + static_cast<int>(threadIdx.x) % 32, spot.row, spot.tile * kColumns);
        });
  }
#endif
}

}  // namespace ddptrain::cuda::gelu_product
