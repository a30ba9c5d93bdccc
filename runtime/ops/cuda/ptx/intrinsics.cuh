#pragma once

#include <cstdint>

/// PTX instructions for which CUDA C++ has no function.

namespace ddptrain::cuda {

/// 2^x within 2 units in the last place; results that are not normal become 0.
__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Begins to fetch `bytes` bytes of global memory into the L2 cache; it and the address are multiples of 16. Compute
/// capability 9.0 and newer, nothing elsewhere.
__device__ __forceinline__ void prefetch_to_l2(const void* address, std::uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(bytes) : "memory");
#endif
}

/// The same for the 32 bytes around an address.
__device__ __forceinline__ void prefetch_to_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/// Reads what no thread of the multiprocessor reads again: the L1 cache does not keep it.
__device__ __forceinline__ uint4 load_once(const uint4* from) {
  uint4 x;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from));
  return x;
}

/// Writes by one instruction. The compiler makes four of an assignment in some kernels.
__device__ __forceinline__ void store_at_once(uint4* to, const uint4& x) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

/// Treatment of lines in L2: policies of PTX createpolicy.
enum class CachePolicy : std::uint64_t { normal = 0x1000000000000000, evict_first = 0x12F0000000000000 };

/// load_once() of what leaves the L2 cache before other lines.
__device__ __forceinline__ uint4 load_evict_first(const uint4* from) {
  uint4 x;
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from), "l"(static_cast<std::uint64_t>(CachePolicy::evict_first)));
  return x;
}

/// store_at_once(), if `condition` and without a branch, of what leaves the L2 cache before other lines.
__device__ __forceinline__ void store_evict_first_if(bool condition, uint4* to, const uint4& x) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
      "@p st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;\n}\n" ::"l"(to),
      "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "l"(static_cast<std::uint64_t>(CachePolicy::evict_first)),
      "r"(static_cast<int>(condition))
      : "memory");
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
