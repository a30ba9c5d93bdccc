#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "runtime/backend/cuda/elements.cuh"
#include "runtime/backend/step.h"

/// The inverse of dropout_slot: the eight features that one Philox call serves.

namespace ddptrain::cuda {

inline constexpr std::uint32_t kDropoutThreads = 128;

__device__ __forceinline__ std::uint32_t first_feature(std::uint32_t call) { return call / 4 * 32 + call % 4 * 2; }
/// Of lane `lane`, from first_feature.
__device__ __forceinline__ std::uint32_t feature_offset(std::uint32_t lane) { return lane / 2 * 8 + lane % 2; }

/// What dropout multiplies the features of one call by.
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

/// One thread per call and row; rows in y, with a stride of the grid.
inline dim3 dropout_grid(std::int64_t rows, std::int64_t features) {
  return {ceil_div(8 * static_cast<std::int64_t>(ceil_div(features, 64)), kDropoutThreads),
          static_cast<std::uint32_t>(std::min<std::int64_t>(rows, 65535))};
}

}  // namespace ddptrain::cuda
