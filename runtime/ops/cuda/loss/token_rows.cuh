#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <numbers>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/ops/cuda/loss/loss.cuh"
#include "runtime/ops/cuda/ptx/intrinsics.cuh"
#include "runtime/ops/cuda/ptx/mma.cuh"
#include "runtime/ops/cuda/reduce.cuh"

/// Code that the kernels of the cross-entropy of tokens share.

namespace ddptrain::cuda::token_rows {

using bf16 = __nv_bfloat16;

template <class T>
struct Problem {
  const T* logits;
  T* dlogits;  ///< May be null, or logits.
  MetricPartial* partials;
  std::uint32_t rows, columns, vocabulary;
  float gradient_scale;
};

constexpr float kLog2e = std::numbers::log2e_v<float>;

/// Exponentials of some logits, relative to the largest of these.
struct alignas(8) Part {
  float largest, total;
};
/// Factor that turns exponentials relative to `from` into exponentials relative to `to`.
__device__ __forceinline__ float change_of_base(float from, float to) {
  return from == to ? 1.0f : exp2_approximate(kLog2e * (from - to));
}
/// Of all threads of the warp.
__device__ __forceinline__ Part part_of_warp(float largest, float total) {
  const float of_warp = warp_max(largest);
  return {of_warp, warp_sum(total * change_of_base(largest, of_warp))};
}
/// The part of the row that has these parts. All threads of the warp get the same.
template <int kParts>
__device__ __forceinline__ Part combined(const Part* parts) {
  static_assert(kParts < 32 || kParts % 32 == 0);
  const int lane = threadIdx.x % 32;
  Part mine{-INFINITY, 0.0f};
  if (kParts % 32 == 0 || lane < kParts) mine = parts[lane];
#pragma unroll
  for (int i = 32; i < kParts; i += 32) {
    const Part other = parts[i + lane];
    const float largest = fmaxf(mine.largest, other.largest);
    mine.total =
        mine.total * change_of_base(mine.largest, largest) + other.total * change_of_base(other.largest, largest);
    mine.largest = largest;
  }
  return part_of_warp(mine.largest, mine.total);
}

// A thread keeps the exponentials of its logits in bf16 as f16, relative to the largest of these and times 2^14: down
// to 2^-28 of the largest they have three bits more than bf16; below 2^-38 they become 0.

constexpr int kScaleBits = 14;
constexpr int kPack = 8;                      // columns of Words
constexpr std::uint32_t kNone = 0xFF80FF80u;  // a pair of -infinity
/// Four pairs of neighbouring logits of a row, or of their exponentials.
using Words = std::uint32_t[4];

/// Logits from column `counted` on become -infinity. `c`: the first one's column.
__device__ __forceinline__ void mask(Words& words, int c, int counted) {
  if (c + kPack <= counted) return;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (c + 2 * k + 1 >= counted) words[k] = (words[k] & 0xFFFFu) | (kNone & 0xFFFF0000u);
    if (c + 2 * k >= counted) words[k] = kNone;
  }
}
/// The largest of each half so far. NaN does not count.
__device__ __forceinline__ void compare(const Words& words, __nv_bfloat162& largest) {
#pragma unroll
  for (const std::uint32_t& word : words) largest = __hmax2(largest, reinterpret_cast<const __nv_bfloat162&>(word));
}
__device__ __forceinline__ float largest_of(const __nv_bfloat162& pair) {
  return fmaxf(fmaxf(__low2float(pair), __high2float(pair)), -INFINITY);
}
__device__ __forceinline__ float shift_of(float largest) {
  return largest == -INFINITY ? 0.0f : fmaf(-kLog2e, largest, static_cast<float>(kScaleBits));
}
__device__ __forceinline__ float exponential(float x, float shift) { return exp2_approximate(fmaf(kLog2e, x, shift)); }
/// Logits become exponentials, which are added to the sums.
__device__ __forceinline__ void keep(Words& words, float shift, float (&sums)[2]) {
#pragma unroll
  for (std::uint32_t& word : words) {
    const float2 x = unpack_bf16(word);
    const float a = exponential(x.x, shift), b = exponential(x.y, shift);
    sums[0] += a;
    sums[1] += b;
    const __half2 half = __floats2half2_rn(a, b);
    word = reinterpret_cast<const std::uint32_t&>(half);
  }
}
/// Exponentials times `factor`, in bf16.
__device__ __forceinline__ uint4 scaled(const Words& words, float factor) {
  Words out;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float2 kept = __half22float2(reinterpret_cast<const __half2&>(words[k]));
    out[k] = pack_bf16(kept.x * factor, kept.y * factor);
  }
  return make_uint4(out[0], out[1], out[2], out[3]);
}
/// The scale of the gradient of a row. All else that is not finite is in the total of the row.
__device__ __forceinline__ float scale_of(float target_logit, float gradient_scale) {
  return isfinite(target_logit) ? gradient_scale : NAN;
}
/// `row`: of exponentials that are kept.
__device__ __forceinline__ MetricPartial metrics_of(const Part& row, float target_logit, bool hit) {
  constexpr float kUnscaled = 1.0f / static_cast<float>(1 << kScaleBits);
  const double loss =
      static_cast<double>(logf(row.total * kUnscaled)) + (static_cast<double>(row.largest) - target_logit);
  return {loss, hit ? 1u : 0u};
}

/// The targets of a block's rows, of so many rows at a time.
class Targets {
 public:
  /// Target of the block's row number `count`, which is `row`. All threads call it, for one row after another.
  __device__ __forceinline__ std::uint32_t of(const Predictions& predictions, std::uint32_t row, std::uint32_t count,
                                              std::uint32_t rows) {
    if (count % kCount == 0) {
      const std::uint32_t later = row + threadIdx.x * gridDim.x;
      __syncthreads();
      if (threadIdx.x < kCount && later < rows) targets_[threadIdx.x] = predictions.target(later);
      __syncthreads();
    }
    return targets_[count % kCount];
  }

 private:
  static constexpr std::uint32_t kCount = 128;  // at most the threads of a block
  std::uint32_t targets_[kCount];
};

template <int kThreads>
struct Shared {
  static_assert(kThreads / 32 <= 32 && 32 % (kThreads / 32) == 0);
  float largest[kThreads / 32];
  float totals[kThreads / 32];
  Part parts[2][kThreads / 32];  // of a row and the next
  Targets targets;
  float target_logit[2];
};

/// Whether a column of this thread before the target's is as large as the largest.
template <int kThreads, int V, class T>
__device__ __forceinline__ bool is_earlier(const T* row, std::uint32_t target, float largest) {
  bool earlier = false;
#pragma unroll 1
  for (std::uint32_t c = threadIdx.x * V; c < target; c += kThreads * V) {
    for (int k = 0; k < V; ++k) earlier = earlier || (c + k < target && to_float(row[c + k]) == largest);
  }
  return earlier;
}

}  // namespace ddptrain::cuda::token_rows
