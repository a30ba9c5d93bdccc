#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <numbers>

#include "runtime/ops/cuda/ptx/intrinsics.cuh"
#include "runtime/ops/cuda/reduce.cuh"

namespace ddptrain::cuda {

/// Of the logits of a row in some columns.
struct alignas(8) SoftmaxPart {
  float largest;
  float total;  ///< Sum of exp(logit - largest).
};

/// What turns the logits of a row into their gradients.
struct alignas(16) RowGradient {
  float shift;          ///< The gradient of a logit is 2^(log2(e) logit + shift), but not at the target.
  std::int32_t target;  ///< Negative if another slice of the vocabulary has it.
  float at_target;      ///< The gradient there.
};

inline constexpr float kLog2e = std::numbers::log2e_v<float>;

/// exp(logit - largest) for shift_for(largest).
__device__ __forceinline__ float shifted_exponential(float logit, float shift) {
  return exp2_approximate(fmaf(kLog2e, logit, shift));
}
__device__ __forceinline__ float shift_for(float largest) { return largest == -INFINITY ? 0.0f : -kLog2e * largest; }

}  // namespace ddptrain::cuda
