#pragma once

/// PTX instructions for which CUDA C++ has no function.

namespace ddptrain::cuda {

/// 2^x within 2 units in the last place; results that are not normal become 0.
__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Begins to fetch the 128 bytes around an address of global memory into the L2 cache.
__device__ __forceinline__ void prefetch_to_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/// Adds each element by itself; compute capability 9.0 and newer. What one thread adds to an address is added in the
/// order of its calls.
__device__ __forceinline__ void add_to_global(float4* sum, float4 x) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(sum), "f"(x.x), "f"(x.y), "f"(x.z),
               "f"(x.w)
               : "memory");
#else
  __trap();
#endif
}

}  // namespace ddptrain::cuda
