#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "runtime/core/step.h"
#include "runtime/device/cuda/elements.cuh"

/// The inverse of dropout_slot: the eight features that one Philox call serves.

namespace ddptrain::cuda {

inline constexpr std::uint32_t kDropoutThreads = 128;

__device__ __forceinline__ std::uint32_t first_feature(std::uint32_t call) { return call / 4 * 32 + call % 4 * 2; }
/// Distance of a lane's feature from first_feature().
__device__ __forceinline__ std::uint32_t feature_offset(std::uint32_t lane) { return lane / 2 * 8 + lane % 2; }

/// Factors of the features of one call.
class DropoutFactors {
 public:
  __device__ DropoutFactors(const Dropout& dropout, std::uint32_t call, std::uint32_t row)
      : threshold_(dropout.rate > 0.0f ? dropout.threshold() : 0),
        scale_(dropout.rate > 0.0f ? dropout.scale() : 1.0f) {
    if (dropout.rate > 0.0f) random_ = dropout.draw(call, row);
  }
  __device__ float of(std::uint32_t lane) const { return random_bits(random_, lane) >= threshold_ ? scale_ : 0.0f; }

 private:
  Philox random_ = {};
  std::uint32_t threshold_;
  float scale_;
};

/// Transposes the 4 x 4 words that four neighbouring lanes hold: word i of lane q becomes word q of lane i.
__device__ __forceinline__ void transpose_in_quad(std::uint32_t (&word)[4]) {
  const bool odd = threadIdx.x % 2 != 0;
  const bool upper = threadIdx.x % 4 >= 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, odd ? word[i] : word[i + 1], 1);
    word[i] = odd ? got : word[i];
    word[i + 1] = odd ? word[i + 1] : got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, upper ? word[i] : word[i + 2], 2);
    word[i] = upper ? got : word[i];
    word[i + 2] = upper ? word[i + 2] : got;
  }
}

/// Factors of eight features from `feature` on, a multiple of 8, for a dropout rate above 0. Called by
/// all lanes of a warp, whose features are neighbours but for steps from one row of `width` features to another; where
/// that is a multiple of 32, four lanes share their random numbers.
__device__ __forceinline__ void eight_factors(const Dropout& dropout, std::uint32_t feature, std::uint32_t row,
                                              std::uint32_t width, float (&factor)[8]) {
  const float scale = dropout.scale();
  if (width % 32 != 0) {
#pragma unroll
    for (int i = 0; i < 8; ++i) factor[i] = dropout.keeps(feature + i, row) ? scale : 0.0f;
    return;
  }
  const std::uint32_t quarter = threadIdx.x % 4;
  Philox random = dropout.draw(dropout_slot(dropout.first + feature - 6 * quarter).call, row);
  transpose_in_quad(random.word);
  const std::uint32_t threshold = dropout.threshold();
#pragma unroll
  for (int i = 0; i < 8; ++i) factor[i] = random_bits(random, i) >= threshold ? scale : 0.0f;
}

/// One thread per call and row; rows in y, with a stride of the grid.
inline dim3 dropout_grid(std::int64_t rows, std::int64_t features) {
  return {ceil_div(8 * static_cast<std::int64_t>(ceil_div(features, 64)), kDropoutThreads),
          static_cast<std::uint32_t>(std::min<std::int64_t>(rows, 65535))};
}

}  // namespace ddptrain::cuda
