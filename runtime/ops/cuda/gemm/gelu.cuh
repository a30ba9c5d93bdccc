#pragma once

#include <cuda_bf16.h>

namespace ddptrain::cuda {

template <class T>
__device__ __forceinline__ float tanh_of(float x) {
#if __CUDA_ARCH__ >= 750
  if constexpr (sizeof(T) == 2) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
#endif
  return tanhf(x);
}

inline constexpr float kGeluRoot = 0.7978845608028654f;  // sqrt(2 / pi)
inline constexpr float kGeluCubic = 0.044715f;

/// What the GELU and its derivative have in common.
template <class T>
struct GeluOf {
  float square, tanh;

  __device__ __forceinline__ explicit GeluOf(float x)
      : square(x * x), tanh(tanh_of<T>(x * fmaf(kGeluRoot * kGeluCubic, square, kGeluRoot))) {}
};

/// The GELU of an element of type T and its derivative, in few instructions.
template <class T>
__device__ __forceinline__ float gelu_of(float x) {
  const float half = 0.5f * x;
  return fmaf(half, GeluOf<T>(x).tanh, half);
}

template <class T>
__device__ __forceinline__ float gelu_slope_of(float x) {
  const GeluOf<T> gelu(x);
  const float inner = x * fmaf(1.5f * kGeluRoot * kGeluCubic, gelu.square, 0.5f * kGeluRoot);
  return fmaf(inner, fmaf(-gelu.tanh, gelu.tanh, 1.0f), fmaf(0.5f, gelu.tanh, 0.5f));
}

}  // namespace ddptrain::cuda
