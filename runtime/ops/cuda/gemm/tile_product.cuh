#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "runtime/ops/cuda/ptx/bulk_copy.cuh"
#include "runtime/ops/cuda/ptx/intrinsics.cuh"
#include "runtime/ops/cuda/ptx/mma.cuh"
#include "runtime/ops/cuda/ptx/wgmma.cuh"
#include "runtime/ops/cuda/ring.cuh"
#include "runtime/ops/cuda/swizzle.cuh"

// Products by Hopper's warpgroup instructions, for kernels that do more with them than multiply.
//
// A thread block computes tiles of 128 rows and 256 columns of the product, one after another. Its warps have three
// tasks, and each runs ahead of the next one:
//   one thread    copies operands to shared memory, in a ring of stages (fetch),
//   8 warps       multiply them, each warpgroup for 64 rows, and leave rounded sums in shared memory (multiply_tiles),
//   3 or 7 warps  finish the tile from there while the next one is multiplied: the kernel's own work (finish_tiles).
// Two blocks, a cluster, compute tiles one below the other. These need the same right operand: each block copies half
// of it to both.
//
// Barriers in shared memory, with what ends a phase:
//   full[stage]   the bytes of the stage have come, from both blocks
//   empty[stage]  the multiplying warps of both blocks have read the stage: copies go to both
//   staged        the multiplying warps have written their sums
//   taken         the finishing warps have read them

namespace ddptrain::cuda::tile_product {

using bf16 = __nv_bfloat16;

constexpr int kRows = 128;
constexpr int kColumns = 256;
constexpr int kDepth = 64;  // terms of a stage
constexpr int kStages = 3;
constexpr int kCluster = 2;  // blocks
constexpr std::uint16_t kBoth = (1 << kCluster) - 1;
constexpr int kWarps = 8;  // that multiply
constexpr int kMultiplying = 32 * kWarps;
constexpr int kLeftBytes = kRows * kDepth * 2;
constexpr int kRightBytes = kColumns * kDepth * 2;
constexpr int kStageBytes = kLeftBytes + kRightBytes;
constexpr int kPieceColumns = 64;  // whose rows have 128 bytes, as swizzled_tiles() wants
constexpr int kPieceBytes = kRows * kPieceColumns * 2;
constexpr int kPieces = kColumns / kPieceColumns;
constexpr int kColumnsOfGroup = 8;  // tiles side by side that are computed at about the same time

struct alignas(1024) Shared {
  char left[kStages][kLeftBytes];
  char right[kStages][kRightBytes];
  char sums[kPieces][kPieceBytes];  // of a tile, in bf16: rows of 64 columns, swizzled
  std::uint64_t full[kStages];
  std::uint64_t empty[kStages];
  std::uint64_t staged;
  std::uint64_t taken;
};

/// Of a product. Each pair of tiles lies below the other.
struct Tiles {
  int depth;    ///< Terms of a sum.
  int columns;  ///< Tiles side by side.
  int pairs;    ///< Below each other.
  int count;    ///< All pairs.
};

/// The left operand is [rows, depth].
struct Maps {
  CUtensorMap left, right;
};

/// Registers of threads. The multiplying warps need some for their sums: two warpgroups. The others, one if three warps
/// finish and two if seven do, leave them.
template <int kFinishers>
struct Roles {
  static constexpr int kThreads = 32 * (kWarps + 1 + kFinishers);
  static constexpr bool kWide = kFinishers == 3;    // see multiply_step()
  static constexpr int kTaken = kWide ? 184 : 160;  // of a thread that multiplies
  static constexpr int kLeft = kWide ? 136 : 96;    // of another one
  static constexpr int kAtLaunch = 65536 / kThreads / 8 * 8;
  static_assert(kMultiplying * kTaken + (kThreads - kMultiplying) * kLeft <= kThreads * kAtLaunch,
                "take_registers() would wait forever");
};

/// A pair of tiles. Groups of columns are computed from top to bottom.
struct Place {
  int pair, column;

  __device__ Place(int index, const Tiles& tiles) {
    const int group = index / (tiles.pairs * kColumnsOfGroup);
    const int width = min(kColumnsOfGroup, tiles.columns - group * kColumnsOfGroup);
    const int in_group = index - group * tiles.pairs * kColumnsOfGroup;
    pair = in_group / width;
    column = group * kColumnsOfGroup + in_group % width;
  }
  /// The first row of a block's tile.
  __device__ int row(std::uint32_t block) const { return (pair * kCluster + static_cast<int>(block)) * kRows; }
};

/// A tile of this block: its first row, and its index among those side by side.
struct Spot {
  int row, tile;
};

/// work(spot, next) for each tile of this block. After the last one, next.tile is Tiles::columns.
template <class Work>
__device__ __forceinline__ void for_tiles(const Tiles& tiles, const Work& work) {
  const int clusters = static_cast<int>(gridDim.x) / kCluster;
  const auto spot_of = [&](int index) -> Spot {
    if (index >= tiles.count) return {0, tiles.columns};
    const Place place(index, tiles);
    return {place.row(block_in_cluster()), place.column};
  };
  for (int index = static_cast<int>(blockIdx.x) / kCluster; index < tiles.count; index += clusters) {
    work(spot_of(index), spot_of(index + clusters));
  }
}

/// fetch_right(stage, tile, k) copies this block's half of a stage's right operand to both blocks.
template <class FetchRight>
__device__ __forceinline__ void fetch(const CUtensorMap& left, const Tiles& tiles, Shared& shared,
                                      const FetchRight& fetch_right) {
  Turn<kStages> turn;
  for_tiles(tiles, [&](const Spot& spot, const Spot&) {
    for (int k = 0; k < tiles.depth; k += kDepth, turn.advance()) {
      std::uint64_t* const full = &shared.full[turn.stage];
      await_phase(&shared.empty[turn.stage], turn.parity ^ 1);
      expect_bytes(full, kStageBytes);
      load_tile(shared.left[turn.stage], left, k, spot.row, full, CachePolicy::normal);
      fetch_right(turn.stage, spot.tile, k);
    }
  });
}

/// Copies this block's half of a stage of a right operand [depth, columns], from row k and column `first` on, to both
/// blocks.
__device__ __forceinline__ void fetch_rows_of_right(const CUtensorMap& right, Shared& shared, int stage, int first,
                                                    int k) {
  const auto block = static_cast<int>(block_in_cluster());
  std::uint64_t* const full = &shared.full[stage];
  char* const half = shared.right[stage] + block * kRightBytes / 2;
  const int column = first + block * kColumns / 2;
  load_tile_to(kBoth, half, right, column, k, full, CachePolicy::normal);
  load_tile_to(kBoth, half + kRightBytes / kPieces, right, column + kPieceColumns, k, full, CachePolicy::normal);
}

/// The same for a right operand [columns, depth]. `first`: the first column of this block's half.
__device__ __forceinline__ void fetch_columns_of_right(const CUtensorMap& right, Shared& shared, int stage, int first,
                                                       int k) {
  char* const half = shared.right[stage] + block_in_cluster() * kRightBytes / 2;
  load_tile_to(kBoth, half, right, k, first, &shared.full[stage], CachePolicy::normal);
}

/// Of a warpgroup's thread, by halves of the columns.
using Sums = float[2][kColumns / 4];

/// sums (+)= 16 terms. `wide`: by one instruction, which ptxas takes only if a thread of the launch has 154 registers.
template <bool kWide, bool kTransposed>
__device__ __forceinline__ void multiply_step(Sums& sums, SwizzledOperand left, SwizzledOperand right, bool add) {
  if constexpr (kWide) {
    wgmma_m64n256k16<kTransposed>(sums[0], sums[1], left, right, add);
  } else {
    wgmma_m64n128k16<kTransposed>(sums[0], left, right, add);
    wgmma_m64n128k16<kTransposed>(sums[1], left, right + kRightBytes / 2, add);
  }
}

/// sums = the product of a tile of `depth` terms, in the rows of the warpgroup. `transposed`: the right operand is
/// [depth, columns], else [columns, depth].
template <bool kWide, bool kTransposed>
__device__ __forceinline__ void multiply(int depth, Shared& shared, int warpgroup, int lane, Turn<kStages>& turn,
                                         Sums& sums) {
  constexpr int kSteps = kDepth / 16;
  constexpr std::uint32_t kRightStep = kTransposed ? 16 * 128 : 32;  // bytes from 16 terms to the next
  const SwizzledOperand left(shared_address(shared.left) + warpgroup * kLeftBytes / 2);
  const SwizzledOperand right(shared_address(shared.right), kRightBytes / kPieces);
  const auto release = [&](int stage) {
    if (lane < kCluster) arrive_in(static_cast<std::uint32_t>(lane), &shared.empty[stage]);
  };
  int previous = -1;
  for (int k = 0; k < depth; k += kDepth, turn.advance()) {
    await_phase(&shared.full[turn.stage], turn.parity);
    wgmma_fence();
    const SwizzledOperand a = left + static_cast<std::uint32_t>(turn.stage) * kLeftBytes;
    const SwizzledOperand b = right + static_cast<std::uint32_t>(turn.stage) * kRightBytes;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      multiply_step<kWide, kTransposed>(sums, a + 32u * i, b + kRightStep * i, k > 0 || i > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (previous >= 0) release(previous);
    previous = turn.stage;
  }
  wgmma_wait<0>();
  settle(sums[0]);
  settle(sums[1]);
  release(previous);
}

/// For stage_sums().
struct WithoutBias {
  __device__ __forceinline__ float2 operator()(float2 sums, int, int) const { return sums; }
};

/// Rounds the sums of a warp's 16 rows. `add_bias` gets two neighbouring sums, the tile, and the first one's column in
/// it.
template <class AddBias>
__device__ __forceinline__ void stage_sums(const Sums& sums, Shared& shared, int warp, int lane, int tile,
                                           const AddBias& add_bias) {
  const int row = warp * 16 + lane % 16;
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const std::uint32_t address = shared_address(shared.sums[piece]);
#pragma unroll
    for (int i = 0; i < kPieceColumns / 16; ++i) {
      std::uint32_t fragment[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* const two = &sums[piece / 2][piece % 2 * 32 + 8 * i + 2 * j];
        const int column = piece * kPieceColumns + 16 * i + j / 2 * 8 + lane % 4 * 2;
        const float2 biased = add_bias(float2{two[0], two[1]}, tile, column);
        fragment[j] = pack_bf16(biased.x, biased.y);
      }
      stmatrix_x4(chunk_at(address, row, 2 * i + lane / 16), fragment);
    }
  }
}

template <bool kWide, bool kTransposed, class AddBias>
__device__ __forceinline__ void multiply_tiles(const Tiles& tiles, Shared& shared, const AddBias& add_bias) {
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Turn<kStages> turn;
  int parity = 0;
  for_tiles(tiles, [&](const Spot& spot, const Spot&) {
    Sums sums;
    multiply<kWide, kTransposed>(tiles.depth, shared, warp / 4, lane, turn, sums);
    await_phase(&shared.taken, parity ^ 1);
    parity ^= 1;
    stage_sums(sums, shared, warp, lane, spot.tile, add_bias);
    __syncwarp();
    if (lane == 0) arrive_in(block_in_cluster(), &shared.staged);
  });
}

/// What a finishing thread has of a tile: 8 columns of each piece, in a row of each group. A warp finishes a group,
/// four rows, at a time.
struct Strip {
  static constexpr int kGroups = kRows / 4;

  int row, column;     ///< The first ones.
  int groups, pieces;  ///< That exist in the result [rows, columns].
  std::uint32_t sums;  ///< Shared address of the first ones.

  __device__ __forceinline__ Strip(const Shared& shared, int rows, int columns, int first_row, int first_column) {
    const std::uint32_t lane = threadIdx.x % 32;
    row = first_row + static_cast<int>(lane) / 8;
    column = first_column + static_cast<int>(lane) % 8 * 8;
    groups = min((rows - row + 3) / 4, kGroups);
    pieces = (columns - first_column) / kPieceColumns;
    sums = chunk_at(shared_address(shared.sums), lane / 8, lane % 8);
  }

  /// In odd groups row % 8 is at least 4, which moves chunks: see chunk_at().
  __device__ __forceinline__ uint4 sums_of(int group, int piece) const {
    return load_shared((sums ^ group % 2 * 64) + group * 4 * 128 + piece * kPieceBytes);
  }
  /// Of a matrix with rows of `length` elements; 0 where it does not exist.
  __device__ __forceinline__ uint4 read(const bf16* matrix, int length, int group, int piece) const {
    return exists(group, piece) ? load_evict_first(reinterpret_cast<const uint4*>(matrix + at(length, group, piece)))
                                : uint4{};
  }
  /// Nothing where it does not exist.
  __device__ __forceinline__ void write(bf16* matrix, int length, int group, int piece, const uint4& x) const {
    store_evict_first_if(exists(group, piece), reinterpret_cast<uint4*>(matrix + at(length, group, piece)), x);
  }

 private:
  __device__ __forceinline__ bool exists(int group, int piece) const { return group < groups && piece < pieces; }
  __device__ __forceinline__ std::size_t at(int length, int group, int piece) const {
    return static_cast<std::size_t>(row + 4 * group) * length + column + piece * kPieceColumns;
  }
};

/// finish(spot, next, await_sums, release) for each tile of this block, in a finishing warp. It calls await_sums()
/// before it reads the sums, and release() after that.
template <class Finish>
__device__ __forceinline__ void finish_tiles(const Tiles& tiles, Shared& shared, const Finish& finish) {
  int parity = 0;
  const auto await_sums = [&] { await_phase(&shared.staged, parity); };
  const auto release = [&] {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive_in(block_in_cluster(), &shared.taken);
  };
  for_tiles(tiles, [&](const Spot& spot, const Spot& next) {
    finish(spot, next, await_sums, release);
    parity ^= 1;
  });
}

template <int kFinishers>
__device__ __forceinline__ void init_barriers(Shared& shared) {
  for (int i = 0; i < kStages; ++i) {
    init_barrier(&shared.full[i], 1);
    init_barrier(&shared.empty[i], kWarps * kCluster);
  }
  init_barrier(&shared.staged, kWarps);
  init_barrier(&shared.taken, kFinishers);
  publish_barriers();
}

/// The body of a kernel. fetch_right, add_bias and finish(warp, spot, next, await_sums, release): see fetch(),
/// stage_sums() and finish_tiles(); `warp` is the number of a finishing warp.
template <int kFinishers, bool kTransposed, class FetchRight, class AddBias, class Finish>
__device__ __forceinline__ void run(const CUtensorMap& left, const Tiles& tiles, Shared& shared,
                                    const FetchRight& fetch_right, const AddBias& add_bias, const Finish& finish) {
  using Role = Roles<kFinishers>;
  if (threadIdx.x == 0) init_barriers<kFinishers>(shared);
  __syncwarp();
  synchronize_cluster();
  if (threadIdx.x < kMultiplying) {
    take_registers<Role::kTaken>();
    multiply_tiles<Role::kWide, kTransposed>(tiles, shared, add_bias);
  } else {
    leave_registers<Role::kLeft>();
    if (threadIdx.x >= kMultiplying + 32) {
      const int warp = uniform(static_cast<int>(threadIdx.x) / 32) - kWarps - 1;
      finish_tiles(tiles, shared, [&](const Spot& spot, const Spot& next, const auto& await_sums, const auto& release) {
        finish(warp, spot, next, await_sums, release);
      });
    }
    if (threadIdx.x == kMultiplying) fetch(left, tiles, shared, fetch_right);
  }
  __syncwarp();
  synchronize_cluster();  // the other block still writes here
}

}  // namespace ddptrain::cuda::tile_product
