#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <type_traits>

#include "runtime/ops/cuda/attention/attention_plans.h"

/// Code that the custom attention kernels share. Their grids have a block row, blockIdx.y, per head of a sample: of
/// queries, or of keys. Rows of qkv have all queries, then all keys, then all values.

namespace ddptrain::cuda::attention {

constexpr float kLog2e = std::numbers::log2e_v<float>;

struct Shape {
  int heads, key_heads, sequence, head_size;
  float scale;

  __device__ int queries() const { return heads / key_heads; }  // that share a key
};

inline Shape shape_of(const AttentionShape& s) {
  return {static_cast<int>(s.heads), static_cast<int>(s.key_heads), static_cast<int>(s.sequence),
          static_cast<int>(s.head_size), 1.0f / std::sqrt(static_cast<float>(s.head_size))};
}

/// The block rows of `heads` heads per sample, of `blocks` blocks each.
inline dim3 grid_of(const AttentionShape& s, std::int64_t heads, std::int64_t blocks) {
  require(s.batch * heads <= 65535, "attention: more than 65,535 heads in a batch");
  return {static_cast<unsigned>(blocks), static_cast<unsigned>(s.batch * heads)};
}

/// work(std::integral_constant<int, head size rounded up to kLeast, twice that, ... or kMost>{})
template <int kLeast, int kMost, class Work>
void with_head(std::int64_t head_size, Work&& work) {
  if constexpr (kLeast < kMost) {
    if (head_size > kLeast) return with_head<2 * kLeast, kMost>(head_size, work);
  }
  work(std::integral_constant<int, kLeast>{});
}

/// Where a head of queries begins, and its key and value.
struct Head {
  std::int64_t width, row;  ///< Elements between rows of out, and of qkv.
  std::size_t at;           ///< In out.
  std::size_t at_query, at_key, at_value, at_statistics;

  __device__ Head(const Shape& s, std::size_t sample, std::size_t head)
      : width(s.heads * s.head_size), row(width + 2 * s.key_heads * s.head_size) {
    const std::size_t first = sample * s.sequence * row, key_head = head / s.queries();
    at = sample * s.sequence * width + head * s.head_size;
    at_query = first + head * s.head_size;
    at_key = first + (s.heads + key_head) * s.head_size;
    at_value = at_key + static_cast<std::size_t>(s.key_heads) * s.head_size;
    at_statistics = (sample * s.heads + head) * s.sequence;
  }
  /// In a grid of heads of queries.
  static __device__ Head of_queries(const Shape& s) { return Head(s, blockIdx.y / s.heads, blockIdx.y % s.heads); }
  /// In a grid of heads of keys: the i-th head of queries that shares the key.
  static __device__ Head of_key(const Shape& s, int i) {
    return Head(s, blockIdx.y / s.key_heads, blockIdx.y % s.key_heads * s.queries() + i);
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
