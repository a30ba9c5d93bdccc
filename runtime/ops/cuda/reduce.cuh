#pragma once

namespace ddptrain::cuda {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

/// Sum and largest value over the lanes of a warp, the same in all of them.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  return value;
}

/// Sum over the threads of a block, in a fixed order; valid in thread 0. `shared`: kThreads / 32 values. May be called
/// again at once.
template <unsigned kThreads, class T>
__device__ __forceinline__ T block_sum(T value, T* shared) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  T total{};
  if (threadIdx.x == 0) {
    for (unsigned warp = 0; warp < kThreads / 32; ++warp) total += shared[warp];
  }
  __syncthreads();
  return total;
}

}  // namespace ddptrain::cuda
