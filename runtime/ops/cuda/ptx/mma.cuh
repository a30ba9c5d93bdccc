#pragma once

#include <cuda_bf16.h>

#include <cstdint>

/// Warp-level matrix instructions on bf16 operands with f32 accumulators (compute capability 8.0 and newer), and what
/// goes with them. Older devices, which refuse bf16, trap.
///
/// Fragments of one thread, g = lane / 4, q = lane % 4:
///   accumulator of m16n8: d[0, 1] = row g, columns 2 q + {0, 1}; d[2, 3] = row g + 8
///   A of m16k16: a[0] = row g, k = 2 q + {0, 1}; a[1] = row g + 8; a[2], a[3] = the same rows, k + 8
///   B of k16n8: b0 = k 2 q + {0, 1}, column g; b1 = k + 8

namespace ddptrain::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Dynamic shared memory of a block, aligned to 1024 bytes.
__device__ __forceinline__ char* dynamic_shared_memory() {
  extern __shared__ __align__(1024) char bytes_of_the_launch[];
  return bytes_of_the_launch;
}

/// 16 bytes of shared memory.
__device__ __forceinline__ uint4 load_shared(std::uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address));
  return x;
}

/// Warp-level d += A B of shape m16n8k16.
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  __trap();
#endif
}

/// Four 8 x 8 matrices: thread holds elements (row g, columns 2 q + {0, 1}) of matrix i in r[i], whose row r has its 16
/// bytes at the address that lane 8 i + r gives.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t address) {
#if __CUDA_ARCH__ >= 750
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
#else
  __trap();
#endif
}

/// The other way round; compute capability 9.0 and newer.
__device__ __forceinline__ void stmatrix_x4(std::uint32_t address, const std::uint32_t (&r)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
#else
  __trap();
#endif
}

/// Four 8 x 8 matrices, transposed: thread holds elements (row 2 q + {0, 1}, column g) of matrix i in r[i], whose row
/// r has its 16 bytes at the address that lane 8 i + r gives.
__device__ __forceinline__ void ldmatrix_x4_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
#if __CUDA_ARCH__ >= 750
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
#else
  __trap();
#endif
}

/// Transposes an 8 x 8 matrix of 16-bit elements held as (row g, columns 2 q + {0, 1}) across the warp.
__device__ __forceinline__ std::uint32_t transpose_8x8(std::uint32_t x) {
  std::uint32_t y = 0;
#if __CUDA_ARCH__ >= 750
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(y) : "r"(x));
#else
  __trap();
#endif
  return y;
}

__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
__device__ __forceinline__ std::uint32_t pack_relu_bf16(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
/// Largest of each half.
__device__ __forceinline__ std::uint32_t max_bf16(std::uint32_t a, std::uint32_t b) {
  std::uint32_t c;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}
/// Bytes of x chosen by the nibbles of `selector`; a nibble of 8 + i stands for the sign of byte i, spread over a byte.
template <std::uint32_t kSelector>
__device__ __forceinline__ std::uint32_t permute_bytes(std::uint32_t x) {
  std::uint32_t y;
  asm("prmt.b32 %0, %1, %1, %2;" : "=r"(y) : "r"(x), "n"(kSelector));
  return y;
}
/// All ones in each half if a > b; neither is negative, nor NaN.
__device__ __forceinline__ std::uint32_t greater_bf16(std::uint32_t a, std::uint32_t b) {
#if __CUDA_ARCH__ >= 900
  std::uint32_t c;
  asm("set.gt.u32.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
#else
  return permute_bytes<0xBB99>(~((b | 0x80008000u) - (a & 0x7FFF7FFFu)));  // as integers: the signs say b >= a
#endif
}
/// A value that is the same in all threads of the warp, told so to the compiler: from 8.0 on it keeps the value, and
/// what is computed from it, in the registers that a warp has once.
__device__ __forceinline__ int uniform(int x) {
#if __CUDA_ARCH__ >= 800
  return static_cast<int>(__reduce_or_sync(0xFFFFFFFFu, static_cast<unsigned>(x)));
#else
  return __shfl_sync(0xFFFFFFFFu, x, 0);
#endif
}
__device__ __forceinline__ float2 unpack_bf16(std::uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u)};
}

}  // namespace ddptrain::cuda
