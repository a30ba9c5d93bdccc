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
#include "runtime/ops/cuda/swiglu.cuh"
#include "runtime/ops/cuda/swizzle.cuh"

// A thread block computes tiles of 128 rows and 256 columns of the product, one after another. Its warps have three
// tasks, and each runs ahead of the next one:
//   one thread    copies operands to shared memory, in a ring of stages (fetch),
//   8 warps       multiply them, each warpgroup for 64 rows, and leave rounded sums in shared memory (multiply_tiles),
//   3 or 7 warps  finish the tile from there while the next one is multiplied (finish_tiles): they write the product
//                 and SwiGLU of it (forward), or read the layer's `pre` and write gradients (backward).
// Two blocks, a cluster, compute tiles one below the other. These need the same right operand: each block copies half
// of it to both.
//
// A tile of the forward pass has 128 columns of gates and the 128 columns of what they gate.
//
// Barriers in shared memory, with what ends a phase:
//   full[stage]   the bytes of the stage have come, from both blocks
//   empty[stage]  the multiplying warps of both blocks have read the stage: copies go to both
//   staged        the multiplying warps have written their sums
//   taken         the finishing warps have read them

namespace ddptrain::cuda::swiglu_product {

using bf16 = __nv_bfloat16;

constexpr int kRows = 128;
constexpr int kColumns = 256;
constexpr int kDepth = 64;  // terms of a stage
constexpr int kStages = 3;
constexpr int kCluster = 2;  // blocks
constexpr int kWarps = 8;    // that multiply
constexpr int kLeftBytes = kRows * kDepth * 2;
constexpr int kRightBytes = kColumns * kDepth * 2;
constexpr int kStageBytes = kLeftBytes + kRightBytes;
constexpr int kPieceColumns = 64;  // whose rows have 128 bytes, as swizzled_tiles() wants
constexpr int kPieceBytes = kRows * kPieceColumns * 2;
constexpr int kPieces = kColumns / kPieceColumns;
constexpr int kColumnsOfGroup = 8;  // tiles side by side that are computed at about the same time

constexpr int threads_of_block(int finishing_warps) { return 32 * (kWarps + 1 + finishing_warps); }

/// backward_again also writes SwiGLU.
enum class Pass : std::uint8_t { forward, backward, backward_again };

/// Columns of SwiGLU.
template <Pass kPass>
constexpr int kHiddenOfTile = kPass == Pass::forward ? kColumns / 2 : kColumns;

struct alignas(1024) Shared {
  char left[kStages][kLeftBytes];
  char right[kStages][kRightBytes];
  char sums[kPieces][kPieceBytes];  // of a tile, in bf16: rows of 64 columns, swizzled
  std::uint64_t full[kStages];
  std::uint64_t empty[kStages];
  std::uint64_t staged;
  std::uint64_t taken;
};

struct Problem {
  const bf16* pre;  ///< Null in the forward pass.
  bf16* result;     ///< pre or dpre
  bf16* y;
  int rows, hidden;
  int depth;    ///< Terms of a sum.
  int columns;  ///< Tiles side by side.
  int pairs;    ///< Of tiles, below each other.
  int tiles;    ///< All pairs.
};

/// The left operand is [rows, depth]. The right one is [2 hidden, depth] forward and [depth, hidden] backward.
struct Maps {
  CUtensorMap left, right;
};

/// A pair of tiles. Groups of columns are computed from top to bottom.
struct Place {
  int pair, column;

  __device__ Place(int index, const Problem& p) {
    const int group = index / (p.pairs * kColumnsOfGroup);
    const int width = min(kColumnsOfGroup, p.columns - group * kColumnsOfGroup);
    const int in_group = index - group * p.pairs * kColumnsOfGroup;
    pair = in_group / width;
    column = group * kColumnsOfGroup + in_group % width;
  }
  /// The first row of a block's tile.
  __device__ int row(std::uint32_t block) const { return (pair * kCluster + static_cast<int>(block)) * kRows; }
};

/// work(first row, first hidden column) for each tile of this block.
template <Pass kPass, class Work>
__device__ __forceinline__ void for_tiles(const Problem& p, const Work& work) {
  const int clusters = static_cast<int>(gridDim.x) / kCluster;
  for (int index = static_cast<int>(blockIdx.x) / kCluster; index < p.tiles; index += clusters) {
    const Place place(index, p);
    work(place.row(block_in_cluster()), place.column * kHiddenOfTile<kPass>);
  }
}

/// Copies this block's half of a stage's right operand to both blocks.
template <Pass kPass>
__device__ __forceinline__ void fetch_right(const Maps& maps, const Problem& p, Shared& shared, int stage, int column,
                                            int k) {
  constexpr std::uint16_t kBoth = (1 << kCluster) - 1;
  const auto block = static_cast<int>(block_in_cluster());
  std::uint64_t* const full = &shared.full[stage];
  char* const half = shared.right[stage] + block * kRightBytes / 2;
  if constexpr (kPass == Pass::forward) {  // gates, or what they gate
    load_tile_to(kBoth, half, maps.right, k, block * p.hidden + column, full, CachePolicy::normal);
  } else {
    const int first = column + block * kColumns / 2;
    load_tile_to(kBoth, half, maps.right, first, k, full, CachePolicy::normal);
    load_tile_to(kBoth, half + kRightBytes / kPieces, maps.right, first + kPieceColumns, k, full, CachePolicy::normal);
  }
}

template <Pass kPass>
__device__ __forceinline__ void fetch(const Maps& maps, const Problem& p, Shared& shared) {
  Turn<kStages> turn;
  for_tiles<kPass>(p, [&](int row, int column) {
    for (int k = 0; k < p.depth; k += kDepth, turn.advance()) {
      std::uint64_t* const full = &shared.full[turn.stage];
      await_phase(&shared.empty[turn.stage], turn.parity ^ 1);
      expect_bytes(full, kStageBytes);
      load_tile(shared.left[turn.stage], maps.left, k, row, full, CachePolicy::normal);
      fetch_right<kPass>(maps, p, shared, turn.stage, column, k);
    }
  });
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

/// sums = the product of a tile, in the rows of the warpgroup.
template <bool kWide, bool kTransposed>
__device__ __forceinline__ void multiply(const Problem& p, Shared& shared, int warpgroup, int lane, Turn<kStages>& turn,
                                         Sums& sums) {
  constexpr int kSteps = kDepth / 16;
  constexpr std::uint32_t kRightStep = kTransposed ? 16 * 128 : 32;  // bytes from 16 terms to the next
  const SwizzledOperand left(shared_address(shared.left) + warpgroup * kLeftBytes / 2);
  const SwizzledOperand right(shared_address(shared.right), kRightBytes / kPieces);
  const auto release = [&](int stage) {
    if (lane < kCluster) arrive_in(static_cast<std::uint32_t>(lane), &shared.empty[stage]);
  };
  int previous = -1;
  for (int k = 0; k < p.depth; k += kDepth, turn.advance()) {
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

/// Rounds the sums of a warp's 16 rows.
__device__ __forceinline__ void stage_sums(const Sums& sums, Shared& shared, int warp, int lane) {
  const int row = warp * 16 + lane % 16;
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const std::uint32_t address = shared_address(shared.sums[piece]);
#pragma unroll
    for (int i = 0; i < kPieceColumns / 16; ++i) {
      std::uint32_t fragment[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = piece % 2 * 32 + 8 * i + 2 * j;
        fragment[j] = pack_bf16(sums[piece / 2][at], sums[piece / 2][at + 1]);
      }
      stmatrix_x4(chunk_at(address, row, 2 * i + lane / 16), fragment);
    }
  }
}

template <Pass kPass, bool kWide>
__device__ __forceinline__ void multiply_tiles(const Problem& p, Shared& shared) {
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Turn<kStages> turn;
  int parity = 0;
  for_tiles<kPass>(p, [&](int, int) {
    Sums sums;
    multiply<kWide, kPass != Pass::forward>(p, shared, warp / 4, lane, turn, sums);
    await_phase(&shared.taken, parity ^ 1);
    parity ^= 1;
    stage_sums(sums, shared, warp, lane);
    __syncwarp();
    if (lane == 0) arrive_in(block_in_cluster(), &shared.staged);
  });
}

/// What a finishing thread computes at a time: 8 columns of a row. A warp computes an item, 64 columns of four rows.
struct Chunk {
  static constexpr std::uint32_t kItemsOfPiece = kRows / 4;

  std::size_t gate, up, y;  ///< Its elements in pre, and in y.
  std::uint32_t sums;       ///< Its shared address.
  bool exists;              ///< If not, the places are those of other elements, which may be read.

  __device__ __forceinline__ Chunk(const Problem& p, const Shared& shared, std::uint32_t first_row,
                                   std::uint32_t first_column, std::uint32_t item) {
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint32_t rows = p.rows;
    const std::uint32_t hidden = p.hidden;
    const std::uint32_t row = first_row + item % kItemsOfPiece * 4 + lane / 8;
    const std::uint32_t column = first_column + item / kItemsOfPiece * kPieceColumns + lane % 8 * 8;
    exists = row < rows && column < hidden;
    const std::size_t read_row = min(row, rows - 1);
    const std::uint32_t read_column = min(column, hidden - 8);
    y = read_row * hidden + read_column;
    gate = read_row * (2 * hidden) + read_column;
    up = gate + hidden;
    // chunk_at(), whose row % 8 is item % 2 * 4 + lane / 8
    const std::uint32_t of_even = shared_address(shared.sums) + lane / 8 * 128 + ((lane % 8 ^ lane / 8) << 4);
    sums = (of_even ^ item % 2 * 64) + item * 4 * 128;
  }
};

__device__ __forceinline__ uint4 load_global(const bf16* from) {
  return load_evict_first(reinterpret_cast<const uint4*>(from));
}
__device__ __forceinline__ void store_global(bf16* to, const uint4& x) {
  store_evict_first(reinterpret_cast<uint4*>(to), x);
}

__device__ __forceinline__ std::uint32_t swiglu_pair(std::uint32_t gates, std::uint32_t ups) {
  const float2 gate = unpack_bf16(gates), up = unpack_bf16(ups);
  return pack_bf16(swiglu_of<bf16>(gate.x, up.x), swiglu_of<bf16>(gate.y, up.y));
}
__device__ __forceinline__ uint4 swiglu_pack(const uint4& gate, const uint4& up) {
  return {swiglu_pair(gate.x, up.x), swiglu_pair(gate.y, up.y), swiglu_pair(gate.z, up.z), swiglu_pair(gate.w, up.w)};
}
__device__ __forceinline__ std::uint32_t gate_gradient_pair(std::uint32_t gates, std::uint32_t ups, std::uint32_t dys) {
  const float2 gate = unpack_bf16(gates), up = unpack_bf16(ups), dy = unpack_bf16(dys);
  return pack_bf16(swiglu_gate_gradient<bf16>(gate.x, up.x, dy.x), swiglu_gate_gradient<bf16>(gate.y, up.y, dy.y));
}
__device__ __forceinline__ uint4 gate_gradient_pack(const uint4& gate, const uint4& up, const uint4& dy) {
  return {gate_gradient_pair(gate.x, up.x, dy.x), gate_gradient_pair(gate.y, up.y, dy.y),
          gate_gradient_pair(gate.z, up.z, dy.z), gate_gradient_pair(gate.w, up.w, dy.w)};
}
__device__ __forceinline__ std::uint32_t up_gradient_pair(std::uint32_t gates, std::uint32_t dys) {
  const float2 gate = unpack_bf16(gates), dy = unpack_bf16(dys);
  return pack_bf16(swiglu_up_gradient<bf16>(gate.x, dy.x), swiglu_up_gradient<bf16>(gate.y, dy.y));
}
__device__ __forceinline__ uint4 up_gradient_pack(const uint4& gate, const uint4& dy) {
  return {up_gradient_pair(gate.x, dy.x), up_gradient_pair(gate.y, dy.y), up_gradient_pair(gate.z, dy.z),
          up_gradient_pair(gate.w, dy.w)};
}

/// A tile, from its sums. `warp`: of those that finish.
template <int kFinishers>
__device__ __forceinline__ void finish_forward(const Problem& p, const Shared& shared, int warp, int row, int column) {
  constexpr std::uint32_t kItems = Chunk::kItemsOfPiece * kHiddenOfTile<Pass::forward> / kPieceColumns;
#pragma unroll 2
  for (std::uint32_t item = warp; item < kItems; item += kFinishers) {
    const Chunk chunk(p, shared, row, column, item);
    const uint4 gate = load_shared(chunk.sums);
    const uint4 up = load_shared(chunk.sums + kPieces / 2 * kPieceBytes);
    const uint4 y = swiglu_pack(gate, up);
    if (!chunk.exists) continue;
    store_global(p.result + chunk.gate, gate);
    store_global(p.result + chunk.up, up);
    store_global(p.y + chunk.y, y);
  }
}

/// The same. A warp has kAhead items of pre on their way to registers. `await_sums`: reading pre begins before.
template <bool kAgain, int kFinishers, class AwaitSums>
__device__ __forceinline__ void finish_backward(const Problem& p, const Shared& shared, int warp, int row, int column,
                                                const AwaitSums& await_sums) {
  constexpr std::uint32_t kItems = Chunk::kItemsOfPiece * kPieces;
  constexpr int kAhead = kFinishers == 3 ? 6 : 4;
  uint4 gate[kAhead], up[kAhead];
  const auto read = [&](std::uint32_t item, int slot) {
    if (item >= kItems) return;
    const Chunk chunk(p, shared, row, column, item);
    gate[slot] = load_global(p.pre + chunk.gate);
    up[slot] = load_global(p.pre + chunk.up);
  };
#pragma unroll
  for (int slot = 0; slot < kAhead; ++slot) read(warp + slot * kFinishers, slot);
  await_sums();
#pragma unroll 1
  for (std::uint32_t first = warp; first < kItems; first += kAhead * kFinishers) {
#pragma unroll
    for (int slot = 0; slot < kAhead; ++slot) {
      const std::uint32_t item = first + slot * kFinishers;
      if (item >= kItems) break;
      const Chunk chunk(p, shared, row, column, item);
      const uint4 dy = load_shared(chunk.sums);
      const uint4 dgate = gate_gradient_pack(gate[slot], up[slot], dy);
      const uint4 dup = up_gradient_pack(gate[slot], dy);
      const uint4 y = kAgain ? swiglu_pack(gate[slot], up[slot]) : uint4{};
      read(item + kAhead * kFinishers, slot);
      if (!chunk.exists) continue;
      store_global(p.result + chunk.gate, dgate);
      store_global(p.result + chunk.up, dup);
      if constexpr (kAgain) store_global(p.y + chunk.y, y);
    }
  }
}

template <Pass kPass, int kFinishers>
__device__ __forceinline__ void finish_tiles(const Problem& p, Shared& shared) {
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32) - kWarps - 1;
  int parity = 0;
  for_tiles<kPass>(p, [&](int row, int column) {
    const auto await_sums = [&] { await_phase(&shared.staged, parity); };
    if constexpr (kPass == Pass::forward) {
      await_sums();
      finish_forward<kFinishers>(p, shared, warp, row, column);
    } else {
      finish_backward<kPass == Pass::backward_again, kFinishers>(p, shared, warp, row, column, await_sums);
    }
    parity ^= 1;
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive_in(block_in_cluster(), &shared.taken);
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

/// Two warpgroups multiply and need registers for their sums. The others, one if three warps finish and two if seven
/// do, leave them some.
template <Pass kPass, int kFinishers>
__global__ void __launch_bounds__(threads_of_block(kFinishers), 1)
    swiglu_product_kernel(const __grid_constant__ Maps maps, const Problem p) {
#if DDP_WGMMA
  constexpr bool kWide = kFinishers == 3;
  constexpr int kMultiplying = 32 * kWarps;
  constexpr int kTaken = kWide ? 184 : 160;  // registers of a thread that multiplies
  constexpr int kLeft = kWide ? 136 : 96;    // of another one
  constexpr int kThreads = threads_of_block(kFinishers);
  constexpr int kAtLaunch = 65536 / kThreads / 8 * 8;
  static_assert(kMultiplying * kTaken + (kThreads - kMultiplying) * kLeft <= kThreads * kAtLaunch,
                "take_registers() would wait forever");
  Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared_memory());
  if (threadIdx.x == 0) init_barriers<kFinishers>(shared);
  __syncwarp();
  synchronize_cluster();
  if (threadIdx.x < kMultiplying) {
    take_registers<kTaken>();
    multiply_tiles<kPass, kWide>(p, shared);
  } else {
    leave_registers<kLeft>();
    if (threadIdx.x >= kMultiplying + 32) finish_tiles<kPass, kFinishers>(p, shared);
    if (threadIdx.x == kMultiplying) fetch<kPass>(maps, p, shared);
  }
  __syncwarp();
  synchronize_cluster();  // the other block still writes here
#endif
}

}  // namespace ddptrain::cuda::swiglu_product
