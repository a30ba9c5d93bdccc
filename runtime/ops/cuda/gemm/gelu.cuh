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

/// The GELU of an element of type T and its derivative.
template <class T>
__device__ __forceinline__ float gelu_of(float x) {
  const float t = tanh_of<T>(kGeluRoot * x * fmaf(kGeluCubic * x, x, 1.0f));
  return 0.5f * x * (1.0f + t);
}

template <class T>
__device__ __forceinline__ float gelu_slope_of(float x) {
  const float t = tanh_of<T>(kGeluRoot * x * fmaf(kGeluCubic * x, x, 1.0f));
  const float inner = kGeluRoot * fmaf(3.0f * kGeluCubic * x, x, 1.0f);
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
}

}  // namespace ddptrain::cuda
