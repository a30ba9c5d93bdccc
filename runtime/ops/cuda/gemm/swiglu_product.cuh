#pragma once

#include "runtime/ops/cuda/gemm/tile_product.cuh"
#include "runtime/ops/cuda/ptx/intrinsics.cuh"
#include "runtime/ops/cuda/swiglu.cuh"

// The finishing warps of a product (tile_product.cuh) write the product and SwiGLU of it (forward), or read the layer's
// `pre` and write gradients (backward). A tile of the forward pass has 128 columns of gates and the 128 columns of what
// they gate.

namespace ddptrain::cuda::swiglu_product {

using namespace tile_product;

/// backward_again also writes SwiGLU.
enum class Pass : std::uint8_t { forward, backward, backward_again };

/// Columns of SwiGLU.
template <Pass kPass>
constexpr int kHiddenOfTile = kPass == Pass::forward ? kColumns / 2 : kColumns;

/// The right operand is [2 hidden, depth] forward and [depth, hidden] backward.
struct Problem {
  const bf16* pre;  ///< Null in the forward pass.
  bf16* result;     ///< pre or dpre
  bf16* y;
  int rows, hidden;
  Tiles tiles;
};

/// Copies this block's half of a stage's right operand to both blocks.
template <Pass kPass>
__device__ __forceinline__ void fetch_right(const Maps& maps, const Problem& p, Shared& shared, int stage, int column,
                                            int k) {
  if constexpr (kPass == Pass::forward) {  // gates, or what they gate
    const auto block = static_cast<int>(block_in_cluster());
    char* const half = shared.right[stage] + block * kRightBytes / 2;
    load_tile_to(kBoth, half, maps.right, k, block * p.hidden + column, &shared.full[stage], CachePolicy::normal);
  } else {
    fetch_rows_of_right(maps.right, shared, stage, column, k);
  }
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
  return load_once(reinterpret_cast<const uint4*>(from));
}
__device__ __forceinline__ void store_global(bf16* to, const uint4& x) {
  store_at_once(reinterpret_cast<uint4*>(to), x);
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
__global__ void __launch_bounds__(Roles<kFinishers>::kThreads, 1)
    swiglu_product_kernel(const __grid_constant__ Maps maps, const Problem p) {
#if DDP_WGMMA
  Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared_memory());
  constexpr int kHidden = kHiddenOfTile<kPass>;
  run<kFinishers, kPass != Pass::forward>(
      maps.left, p.tiles, shared,
      [&](int stage, int tile, int k) { fetch_right<kPass>(maps, p, shared, stage, tile * kHidden, k); },
      [&](int warp, int row, int tile, const auto& await_sums) {
        if constexpr (kPass == Pass::forward) {
          await_sums();
          finish_forward<kFinishers>(p, shared, warp, row, tile * kHidden);
        } else {
          finish_backward<kPass == Pass::backward_again, kFinishers>(p, shared, warp, row, tile * kHidden, await_sums);
        }
      });
#endif
}

}  // namespace ddptrain::cuda::swiglu_product
