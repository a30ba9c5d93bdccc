#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <type_traits>

#include "runtime/ops/cuda/attention/attention_plans.h"

/// Code that the custom attention kernels share. Their grids have a block row, blockIdx.y, per head of a sample.

namespace ddptrain::cuda::attention {

constexpr float kLog2e = std::numbers::log2e_v<float>;

struct Shape {
  int heads, sequence, head_size;
  float scale;
};

inline Shape shape_of(const AttentionShape& s) {
  return {static_cast<int>(s.heads), static_cast<int>(s.sequence), static_cast<int>(s.head_size),
          1.0f / std::sqrt(static_cast<float>(s.head_size))};
}

/// The block rows of all heads, of `blocks` blocks each.
inline dim3 grid_of(const AttentionShape& s, std::int64_t blocks) {
  require(s.batch * s.heads <= 65535, "attention: more than 65,535 heads in a batch");
  return {static_cast<unsigned>(blocks), static_cast<unsigned>(s.batch * s.heads)};
}

/// work(std::integral_constant<int, head size rounded up to kLeast, twice that, ... or kMost>{})
template <int kLeast, int kMost, class Work>
void with_head(std::int64_t head_size, Work&& work) {
  if constexpr (kLeast < kMost) {
    if (head_size > kLeast) return with_head<2 * kLeast, kMost>(head_size, work);
  }
  work(std::integral_constant<int, kLeast>{});
}

/// Where a block's head begins.
struct Head {
  std::int64_t width, row;  ///< Elements between rows of out, and of qkv.
  std::size_t at, at_qkv, at_statistics;

  __device__ explicit Head(const Shape& s) : width(s.heads * s.head_size), row(3 * width) {
    const std::size_t sample = blockIdx.y / s.heads, head = blockIdx.y % s.heads;
    at = sample * s.sequence * width + head * s.head_size;
    at_qkv = sample * s.sequence * row + head * s.head_size;
    at_statistics = static_cast<std::size_t>(blockIdx.y) * s.sequence;
  }
};

/// Over lanes 4 i to 4 i + 3, the same in all of them.
__device__ __forceinline__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, 2));
}
__device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(0xFFFFFFFFu, value, 1);
  return value + __shfl_xor_sync(0xFFFFFFFFu, value, 2);
}

}  // namespace ddptrain::cuda::attention
