#pragma once

#include <cuda_fp8.h>

#include "runtime/ops/cuda/gemm/fp8.h"
#include "runtime/ops/cuda/reduce.cuh"

namespace ddptrain::cuda {

template <DType kFormat>
__device__ __forceinline__ std::uint32_t pack_fp8(float a, float b, float c, float d) {
  constexpr auto kKind = kFormat == DType::e4m3 ? __NV_E4M3 : __NV_E5M2;
  const std::uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, kKind);
  const std::uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, kKind);
  return low | high << 16;
}

template <DType kFormat>
__device__ __forceinline__ uint2 pack_fp8(const float (&value)[8], float scale) {
  return {pack_fp8<kFormat>(value[0] * scale, value[1] * scale, value[2] * scale, value[3] * scale),
          pack_fp8<kFormat>(value[4] * scale, value[5] * scale, value[6] * scale, value[7] * scale)};
}

__device__ __forceinline__ float largest_magnitude(const float (&value)[8], float largest) {
#pragma unroll
  for (const float v : value) largest = fmaxf(largest, fabsf(v));
  return largest;
}

/// By one thread for many: most find that there is nothing to write.
__device__ __forceinline__ void note_largest(float magnitude, Fp8State* state) {
  const std::uint32_t bits = __float_as_uint(magnitude);
  if (bits > *const_cast<const volatile std::uint32_t*>(&state->largest)) atomicMax(&state->largest, bits);
}

}  // namespace ddptrain::cuda
