#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/ptx/intrinsics.cuh"
#include "runtime/ops/cuda/ptx/mma.cuh"
#include "runtime/ops/cuda/reduce.cuh"

// A warp computes one column of y: it reads a row of the weight once, in pieces of 512 bytes, and all rows of x, which
// are few and stay near. While the operation before still runs, warps fetch the beginning of their rows of the weight
// into the L2 cache. This is right even if that operation writes the weight: writes go to the same cache.

namespace ddptrain::cuda::few_rows {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kPack = 8;   // elements that a lane reads at a time
constexpr int kAhead = 4;  // packs that a lane has under way
constexpr int kMostRows = 8;
constexpr std::uint32_t kLine = 128;  // bytes

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
  std::uint32_t out;
  std::uint32_t prefetched;  ///< Bytes of each row of the weight.
};

/// kRows: at least a.rows.
template <int kRows>
__global__ void __launch_bounds__(kThreads)
    few_rows_kernel(const FewRows a, const __nv_bfloat16* x, const __nv_bfloat16* weight, const __nv_bfloat16* bias,
                    __nv_bfloat16* y) {
  const std::uint32_t column = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (column >= a.out) return;
  const __nv_bfloat16* const row = weight + static_cast<std::size_t>(column) * a.in;
  for (std::uint32_t byte = lane * kLine; byte < a.prefetched; byte += 32 * kLine) {
    prefetch_to_l2(reinterpret_cast<const char*>(row) + byte);
  }
  let_successor_start();
  wait_for_predecessor();
  const std::uint32_t packs = a.in / kPack;
  const auto* const weights = reinterpret_cast<const uint4*>(row);
  const auto* const inputs = reinterpret_cast<const uint4*>(x);
  float sum[kRows] = {};
  for (std::uint32_t first = lane; first < packs; first += 32 * kAhead) {
    uint4 fetched[kAhead];
#pragma unroll
    for (std::uint32_t k = 0; k < kAhead; ++k) {
      const std::uint32_t pack = first + 32 * k;
      fetched[k] = pack < packs ? weights[pack] : uint4{};
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kAhead; ++k) {
      const std::uint32_t pack = min(first + 32 * k, packs - 1);
#pragma unroll
      for (std::uint32_t r = 0; r < kRows; ++r) {
        sum[r] = add_products(fetched[k], inputs[min(r, a.rows - 1) * packs + pack], sum[r]);
      }
    }
  }
#pragma unroll
  for (std::uint32_t r = 0; r < kRows; ++r) {
    const float total = warp_sum(sum[r]) + (bias != nullptr ? to_float(bias[column]) : 0.0f);
    if (lane == 0 && r < a.rows) y[static_cast<std::size_t>(r) * a.out + column] = from_float<__nv_bfloat16>(total);
  }
}

}  // namespace ddptrain::cuda::few_rows
