#pragma once

#include <cuda_runtime.h>

#include <numbers>

#include "runtime/ops/cuda/ptx/intrinsics.cuh"

namespace ddptrain::cuda {

/// 1 / (1 + exp(-x)). For elements of 16 bits, by the hardware's approximations, whose error is that of a few roundings
/// of an f32.
template <class T>
__device__ __forceinline__ float sigmoid_of(float x) {
  if constexpr (sizeof(T) == 2) return __fdividef(1.0f, 1.0f + exp2_approximate(-std::numbers::log2e_v<float> * x));
  return 1.0f / (1.0f + expf(-x));
}

/// silu(gate) * up of elements of type T.
template <class T>
__device__ __forceinline__ float swiglu_of(float gate, float up) {
  return gate * sigmoid_of<T>(gate) * up;
}

/// From the gradient `dy` of swiglu_of() to those of its arguments.
template <class T>
__device__ __forceinline__ float swiglu_gate_gradient(float gate, float up, float dy) {
  const float gated = sigmoid_of<T>(gate);
  return dy * up * gated * (1.0f + gate * (1.0f - gated));
}
template <class T>
__device__ __forceinline__ float swiglu_up_gradient(float gate, float dy) {
  return dy * gate * sigmoid_of<T>(gate);
}

}  // namespace ddptrain::cuda
