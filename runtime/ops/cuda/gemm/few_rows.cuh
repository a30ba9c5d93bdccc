#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/ptx/intrinsics.cuh"
#include "runtime/ops/cuda/ptx/mma.cuh"
#include "runtime/ops/cuda/reduce.cuh"
#include "runtime/ops/cuda/swiglu.cuh"

// One warp, or a few of a block, compute a column of y: they read a row of the weight once, in pieces of 512 bytes, and
// all rows of x, which are few and stay near. With a SwiGLU they compute a gate and what it gates, which are two rows
// of the weight. While operations before still run, the first blocks fetch their rows of the weight into the L2 cache.
// This is right even if such an operation writes the weight: writes go to the same cache.

namespace ddptrain::cuda::few_rows {

constexpr std::uint32_t kWarps = 4;
constexpr int kThreads = 32 * static_cast<int>(kWarps);
constexpr std::uint32_t kPack = 8;  // elements that a lane reads at a time
constexpr std::uint32_t kMostRows = 8;

/// sum + the products of eight elements.
__device__ __forceinline__ float add_products(const uint4& a, const uint4& b, float sum) {
  const std::uint32_t left[] = {a.x, a.y, a.z, a.w}, right[] = {b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 x = unpack_bf16(left[i]), y = unpack_bf16(right[i]);
    sum += x.x * y.x;
    sum += x.y * y.y;
  }
  return sum;
}

struct FewRows {
  std::uint32_t rows;
  std::uint32_t in;
  std::uint32_t out;         ///< Rows of the weight, and columns of the product.
  std::uint32_t columns;     ///< The same, or half of it with a SwiGLU: columns of gates.
  std::uint32_t shared_by;   ///< Warps that share a column: 1, 2 or 4.
  std::uint32_t prefetched;  ///< Columns whose rows of the weight are fetched early.
  const __nv_bfloat16* x;
  const __nv_bfloat16* weight;
  const __nv_bfloat16* bias;  ///< May be null.
  __nv_bfloat16* product;     ///< [rows, out]
  __nv_bfloat16* y;           ///< [rows, columns]: the SwiGLU of the product.

  __device__ const __nv_bfloat16* row(std::uint32_t column) const {
    return weight + static_cast<std::size_t>(column) * in;
  }
};

/// Rows of the weight for a column: with a SwiGLU, of the gate and of what it gates.
template <bool kGated>
constexpr int kOfColumn = kGated ? 2 : 1;

/// This lane's terms of a column. Its first pack is `first`, and the next ones are `step` apart.
template <int kRows, bool kGated>
__device__ __forceinline__ void add_terms(const FewRows& a, std::uint32_t column, std::uint32_t first,
                                          std::uint32_t step, float (&sum)[kOfColumn<kGated>][kRows]) {
  constexpr int kParts = kOfColumn<kGated>;
  constexpr std::uint32_t kAhead = !kGated      ? 6
                                   : kRows <= 4 ? 3
                                                : 2;  // packs of a row of the weight that a lane has under way
  const std::uint32_t packs = a.in / kPack;
  const auto* const inputs = reinterpret_cast<const uint4*>(a.x);
  for (; first < packs; first += step * kAhead) {
    uint4 fetched[kParts][kAhead];
#pragma unroll
    for (std::uint32_t k = 0; k < kAhead; ++k) {
      const std::uint32_t pack = first + step * k;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const auto* const row = reinterpret_cast<const uint4*>(a.row(column + part * a.columns));
        fetched[part][k] = pack < packs ? load_once(row + pack) : uint4{};
      }
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kAhead; ++k) {
      const std::uint32_t pack = min(first + step * k, packs - 1);
#pragma unroll
      for (std::uint32_t r = 0; r < kRows; ++r) {
        const uint4 input = inputs[min(r, a.rows - 1) * packs + pack];
#pragma unroll
        for (int part = 0; part < kParts; ++part) sum[part][r] = add_products(fetched[part][k], input, sum[part][r]);
      }
    }
  }
}

/// kRows: at least a.rows. The terms of a column are added up in the same order for every number of rows.
template <int kRows, bool kGated>
__global__ void __launch_bounds__(kThreads) few_rows_kernel(const FewRows a) {
  constexpr int kParts = kOfColumn<kGated>;
  __shared__ float terms[kWarps][kParts][kRows];
  const std::uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::uint32_t own_column = (blockIdx.x * kWarps + warp) / a.shared_by, member = warp % a.shared_by;
  const std::uint32_t column = min(own_column, a.columns - 1);
  if (own_column < a.prefetched && member == 0 && lane < kParts) {
    prefetch_to_l2(a.row(column + lane * a.columns), a.in * static_cast<std::uint32_t>(sizeof(__nv_bfloat16)));
  }
  if (a.bias != nullptr && member == 0 && lane < kParts) prefetch_to_l2(a.bias + column + lane * a.columns);
  let_successor_start();
  wait_for_predecessor();
  float bias[kParts] = {};
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    if (a.bias != nullptr) bias[part] = to_float(a.bias[column + part * a.columns]);
  }
  float sum[kParts][kRows] = {};
  add_terms<kRows, kGated>(a, column, 32 * member + lane, 32 * a.shared_by, sum);
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      sum[part][r] = warp_sum(sum[part][r]);
      if (a.shared_by > 1 && lane == 0) terms[warp][part][r] = sum[part][r];
    }
  }
  if (a.shared_by > 1) __syncthreads();
  if (lane > 0 || member > 0 || own_column >= a.columns) return;
#pragma unroll
  for (std::uint32_t r = 0; r < kRows; ++r) {
    if (r >= a.rows) break;
    __nv_bfloat16 product[kParts];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const std::uint32_t of_product = column + part * a.columns;
      float total = sum[part][r];
      for (std::uint32_t other = 1; other < a.shared_by; ++other) total += terms[warp + other][part][r];
      product[part] = from_float<__nv_bfloat16>(total + bias[part]);
      a.product[static_cast<std::size_t>(r) * a.out + of_product] = product[part];
    }
    if constexpr (kGated) {
      const float gated = swiglu_of<__nv_bfloat16>(to_float(product[0]), to_float(product[1]));
      a.y[static_cast<std::size_t>(r) * a.columns + column] = from_float<__nv_bfloat16>(gated);
    }
  }
}

}  // namespace ddptrain::cuda::few_rows
