#pragma once

#include "runtime/ops/cuda/gemm/tile_product.cuh"
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
    fetch_columns_of_right(maps.right, shared, stage, block * p.hidden + column, k);
  } else {
    fetch_rows_of_right(maps.right, shared, stage, column, k);
  }
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
__device__ __forceinline__ void finish_forward(const Problem& p, const Strip& strip, int warp) {
  constexpr int kHalf = kPieces / 2;
#pragma unroll 1
  for (int group = warp; group < Strip::kGroups; group += kFinishers) {
    uint4 gate[kHalf], up[kHalf], y[kHalf];
#pragma unroll
    for (int piece = 0; piece < kHalf; ++piece) {
      gate[piece] = strip.sums_of(group, piece);
      up[piece] = strip.sums_of(group, kHalf + piece);
    }
#pragma unroll
    for (int piece = 0; piece < kHalf; ++piece) y[piece] = swiglu_pack(gate[piece], up[piece]);
#pragma unroll
    for (int piece = 0; piece < kHalf; ++piece) {
      strip.write(p.result, 2 * p.hidden, group, piece, gate[piece]);
      strip.write(p.result + p.hidden, 2 * p.hidden, group, piece, up[piece]);
      strip.write(p.y, p.hidden, group, piece, y[piece]);
    }
  }
}

/// A group of pre, on its way to registers.
struct Group {
  uint4 gate[kPieces], up[kPieces];
};

__device__ __forceinline__ void read_piece(const Problem& p, const Strip& strip, int group, int piece, Group& pre) {
  pre.gate[piece] = strip.read(p.pre, 2 * p.hidden, group, piece);
  pre.up[piece] = strip.read(p.pre + p.hidden, 2 * p.hidden, group, piece);
}

/// The same. `pre` is the warp's first group. Each next one is read while a group is computed.
template <bool kAgain, int kFinishers>
__device__ __forceinline__ void finish_backward(const Problem& p, const Strip& strip, int warp, Group& pre) {
  constexpr int kTogether = 2;  // pieces; more take too many registers
#pragma unroll 1
  for (int group = warp; group < Strip::kGroups; group += kFinishers) {
#pragma unroll
    for (int first = 0; first < kPieces; first += kTogether) {
      uint4 dy[kTogether], dgate[kTogether], dup[kTogether], y[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) dy[i] = strip.sums_of(group, first + i);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const uint4 gate = pre.gate[first + i], up = pre.up[first + i];
        dgate[i] = gate_gradient_pack(gate, up, dy[i]);
        dup[i] = up_gradient_pack(gate, dy[i]);
        if constexpr (kAgain) y[i] = swiglu_pack(gate, up);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int piece = first + i;
        read_piece(p, strip, group + kFinishers, piece, pre);
        strip.write(p.result, 2 * p.hidden, group, piece, dgate[i]);
        strip.write(p.result + p.hidden, 2 * p.hidden, group, piece, dup[i]);
        if constexpr (kAgain) strip.write(p.y, p.hidden, group, piece, y[i]);
      }
    }
  }
}

template <Pass kPass, int kFinishers>
__global__ void __launch_bounds__(Roles<kFinishers>::kThreads, 1)
    swiglu_product_kernel(const __grid_constant__ Maps maps, const Problem p) {
#if DDP_WGMMA
  Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared_memory());
  constexpr int kHidden = kHiddenOfTile<kPass>;
  const auto strip_of = [&](const Spot& spot) {
    return Strip(shared, p.rows, p.hidden, spot.row, spot.tile * kHidden);
  };
  const auto read_first = [&](const Spot& spot, int warp, Group& pre) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) read_piece(p, strip_of(spot), warp, piece, pre);
  };
  bool begun = false;
  Group pre;
  run<kFinishers, kPass != Pass::forward>(
      maps.left, p.tiles, shared,
      [&](int stage, int tile, int k) { fetch_right<kPass>(maps, p, shared, stage, tile * kHidden, k); }, WithoutBias{},
      [&](int warp, const Spot& spot, const Spot& next, const auto& await_sums, const auto& release) {
        if constexpr (kPass == Pass::forward) {
          await_sums();
          finish_forward<kFinishers>(p, strip_of(spot), warp);
          release();
        } else {
          if (!begun) read_first(spot, warp, pre);
          begun = true;
          await_sums();
          finish_backward<kPass == Pass::backward_again, kFinishers>(p, strip_of(spot), warp, pre);
          release();
          read_first(next, warp, pre);
        }
      });
#endif
}

}  // namespace ddptrain::cuda::swiglu_product
