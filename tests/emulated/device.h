#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "tests/emulated/block.h"

/// CUDA C++ as kernels use it, for the CPU's compiler. To be included before a kernel, whose own headers for PTX
/// instructions are those of tests/emulated/shadow.

#undef __device__
#undef __global__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#define __device__
#define __global__ inline
#define __shared__ static  // of all threads
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

struct EmulatedThreadIndex {
  struct X {
    operator int() const { return ddptrain::emulated::Block::current().thread(); }
  } x;
};
/// Of the first block of the cluster, as tests set it. Threads read that of their own block.
struct EmulatedBlockIndex {
  struct X {
    int first;
    X(int of_first) : first(of_first) {}  // NOLINT: as an int
    operator int() const { return first + ddptrain::emulated::Block::current().rank(); }
  } x = 0;
  int y = 0;
};
struct EmulatedDimensions {
  int x = 0, y = 0;
};
inline EmulatedThreadIndex threadIdx;
inline EmulatedBlockIndex blockIdx;
inline EmulatedDimensions gridDim, blockDim;

inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline int min(int a, int b) { return a < b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline void __syncwarp() { ddptrain::emulated::Block::current().meet_warp(); }
inline void __syncthreads() { ddptrain::emulated::Block::current().meet_all(); }
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return ddptrain::emulated::Block::current().exchange(value)[static_cast<std::size_t>(threadIdx.x % 32 ^ mask)];
}
inline int __any_sync(unsigned, int value) {
  int found = 0;
  for (const int of_lane : ddptrain::emulated::Block::current().exchange(value)) found |= of_lane;
  return found;
}

inline void __threadfence() {}
template <class T>
T atomicAdd(T* sum, T value) {
  return std::exchange(*sum, *sum + value);
}

template <class T>
T __ldcg(const T* from) {
  return *from;
}
template <class T>
void __stcg(T* to, T value) {
  *to = value;
}
template <class T>
void __stcs(T* to, T value) {
  std::memcpy(to, &value, sizeof(T));  // bf16 need not lie as the CPU wants it
}

namespace ddptrain::emulated {

/// A matrix as the CPU's load_tile() knows it, in a CUtensorMap.
struct Matrix {
  const __nv_bfloat16* data;
  std::int64_t rows, columns;
  int tile_rows = 64;

  CUtensorMap map() const {
    CUtensorMap map{};
    std::memcpy(&map, this, sizeof(Matrix));
    return map;
  }
  static Matrix of(const CUtensorMap& map) {
    Matrix matrix{};
    std::memcpy(static_cast<void*>(&matrix), &map, sizeof(Matrix));
    return matrix;
  }
};

/// Where an element of a tile in shared memory lies: its 16-byte chunks are at chunk XOR row % 8.
inline std::uint32_t swizzled(std::uint32_t address) { return address ^ (address >> 7 & 7) << 4; }
inline float swizzled_element(const char* shared_memory, std::uint32_t address) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, shared_memory + swizzled(address), sizeof(bits));
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float value = 0.0f;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

}  // namespace ddptrain::emulated
