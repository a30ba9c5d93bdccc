#pragma once

#include <cuda_bf16.h>

#include <cstdint>

/// Hopper's warpgroup matrix instructions on bf16 operands with f32 accumulators, and their companions (PTX ISA,
/// "Asynchronous warpgroup level matrix instructions"). A warpgroup is 128 consecutive threads.
///
/// All shared-memory operands use the layout without swizzle: 8 x 8 element core matrices of 128 contiguous bytes,
/// eight rows of 16 bytes. Kept as planes of 16-byte rows, such an operand may start at any row, which is what makes a
/// convolution a sum of shifted matrix products.
///
/// Fragments of one thread (g = lane / 4, q = lane % 4, w = warp in the warpgroup):
///   accumulator of m64nN: d[4 j + 0, 1] = row 16 w + g, columns 8 j + 2 q + {0, 1}; d[4 j + 2, 3] = row 16 w + g + 8
///   A in registers, m64k16: a[0] = row 16 w + g, k = 2 q + {0, 1}; a[1] = row + 8; a[2], a[3] = k + 8

namespace ddptrain::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Descriptor of an operand whose core matrices lie `leading` bytes apart along K and `stride` bytes apart along M or
/// N. Moving it by a number of bytes changes only the low word.
struct Operand {
  std::uint32_t low;
  std::uint32_t high;

  __device__ __forceinline__ Operand(std::uint32_t address, std::uint32_t leading, std::uint32_t stride)
      : low((address >> 4) | (leading >> 4) << 16), high(stride >> 4) {}
  __device__ __forceinline__ Operand operator+(std::uint32_t bytes) const {
    Operand moved = *this;
    moved.low += bytes >> 4;
    return moved;
  }
  __device__ __forceinline__ std::uint64_t word() const { return static_cast<std::uint64_t>(high) << 32 | low; }
};

/// Orders this thread's register and earlier wgmma accesses before the wgmmas that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Named barriers (PTX bar): `threads` threads in all wait or only arrive.
__device__ __forceinline__ void barrier_wait(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
/// Makes ordinary stores to shared memory visible to wgmma; before the barrier, in every storing thread.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// d (+)= A B, A [64, 16] K-major and B [16, 64] given by rows of N, K contiguous, both in shared memory.
__device__ __forceinline__ void wgmma_m64n64k16(float (&d)[32], Operand a, Operand b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
      "%32, %33, p, 1, 1, 0, 0;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a.word()), "l"(b.word()), "r"(static_cast<int>(add)));
}

/// d (+)= A B, A [64, 16] K-major, B [16, 96] given by rows of K, N contiguous, both in shared memory.
__device__ __forceinline__ void wgmma_m64n96k16_transposed_b(float (&d)[48], Operand a, Operand b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47}, "
      "%48, %49, p, 1, 1, 0, 1;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
      : "l"(a.word()), "l"(b.word()), "r"(static_cast<int>(add)));
}

/// d += A B, A [64, 16] in registers, B [16, 32] given by rows of K, N contiguous, in shared memory.
__device__ __forceinline__ void wgmma_m64n32k16_transposed_b(float (&d)[16], const std::uint32_t (&a)[4], Operand b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, p, 1, 1, 1;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.word()), "r"(1));
}

/// Warp-level d += A B of shape m16n8k16.
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Four 8 x 8 matrices: thread holds elements (row g, columns 2 q + {0, 1}) of matrix i in r[i], whose row r has its 16
/// bytes at the address that lane 8 i + r gives.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// Four 8 x 8 matrices, transposed: thread holds elements (row 2 q + {0, 1}, column g) of matrix i in r[i], whose row
/// r has its 16 bytes at the address that lane 8 i + r gives.
__device__ __forceinline__ void ldmatrix_x4_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// Transposes an 8 x 8 matrix of 16-bit elements held as (row g, columns 2 q + {0, 1}) across the warp.
__device__ __forceinline__ std::uint32_t transpose_8x8(std::uint32_t x) {
  std::uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(y) : "r"(x));
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
/// Largest of each half, and all ones in each half where a > b.
__device__ __forceinline__ std::uint32_t max_bf16(std::uint32_t a, std::uint32_t b) {
  std::uint32_t c;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}
__device__ __forceinline__ std::uint32_t greater_bf16(std::uint32_t a, std::uint32_t b) {
  std::uint32_t c;
  asm("set.gt.u32.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}
/// Bytes of x chosen by the nibbles of `selector`; a nibble of 8 + i stands for the sign of byte i, spread over a byte.
template <std::uint32_t kSelector>
__device__ __forceinline__ std::uint32_t permute_bytes(std::uint32_t x) {
  std::uint32_t y;
  asm("prmt.b32 %0, %1, %1, %2;" : "=r"(y) : "r"(x), "n"(kSelector));
  return y;
}
/// A value that is the same in all threads of the warp, told so to the compiler.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xFFFFFFFFu, x, 0); }
__device__ __forceinline__ float2 unpack_bf16(std::uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u)};
}

}  // namespace ddptrain::cuda
