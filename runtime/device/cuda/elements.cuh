#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "runtime/core/tensor.h"

namespace ddptrain::cuda {

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <class T>
__device__ __forceinline__ T from_float(float value) {
  if constexpr (sizeof(T) == 2) {
    return __float2bfloat16_rn(value);
  } else {
    return value;
  }
}

/// V neighbouring elements that are loaded and stored at once. Their address is a multiple of their total size.
template <class T, int V>
struct alignas(sizeof(T) * V) Pack {
  T value[V];
};

template <int V, class T>
__device__ __forceinline__ void load(const T* from, float (&to)[V]) {
  const auto pack = *reinterpret_cast<const Pack<T, V>*>(from);
#pragma unroll
  for (int i = 0; i < V; ++i) to[i] = to_float(pack.value[i]);
}

template <int V, class T>
__device__ __forceinline__ void store(const float (&from)[V], T* to) {
  Pack<T, V> pack;
#pragma unroll
  for (int i = 0; i < V; ++i) pack.value[i] = from_float<T>(from[i]);
  *reinterpret_cast<Pack<T, V>*>(to) = pack;
}

/// Calls work(T{}) with T = the element type of activations.
template <class Work>
void with_element(DType dtype, Work&& work) {
  if (dtype == DType::bf16) {
    work(__nv_bfloat16{});
  } else {
    work(float{});
  }
}

inline bool is_aligned(const void* pointer, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

/// Whether rows of `columns` elements at these addresses can be read four elements at a time.
template <class... Pointers>
bool in_fours(std::int64_t columns, Pointers... pointers) {
  return columns % 4 == 0 && (... && is_aligned(pointers, 16));
}

inline std::uint32_t ceil_div(std::int64_t a, std::int64_t b) { return static_cast<std::uint32_t>((a + b - 1) / b); }

}  // namespace ddptrain::cuda
