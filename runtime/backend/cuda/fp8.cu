#include "runtime/backend/cuda/fp8.h"

#include <cuda_fp8.h>

#include <algorithm>

#include "runtime/backend/cuda/cuda_utils.h"
#include "runtime/backend/cuda/elements.cuh"
#include "runtime/backend/cuda/reduce.cuh"

namespace ddptrain::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kTile = 128;                    // rows and columns of a block
constexpr int kStride = kTile / 4 + 1;        // words of a row in shared memory
constexpr int kWords = kTile * kStride + 32;  // with four more per 16 rows: the words of a warp's loads differ in bank
constexpr std::uint32_t kLargestBlocks = 1024;

__device__ __forceinline__ int word_at(int row, int word) { return row * kStride + row / 16 * 4 + word; }

/// *largest = the largest magnitude there and here.
__global__ void __launch_bounds__(kThreads)
    largest_kernel(const __nv_bfloat16* from, std::size_t count, std::uint32_t* largest) {
  float mine = 0.0f;
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * kThreads * 8;
  for (std::size_t i = (static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x) * 8; i < count; i += step) {
    float value[8];
    load<8>(from + i, value);
#pragma unroll
    for (int k = 0; k < 8; ++k) mine = fmaxf(mine, fabsf(value[k]));
  }
  mine = warp_max(mine);
  if (threadIdx.x % 32 == 0) atomicMax(largest, __float_as_uint(mine));
}

template <Fp8 kFormat>
__device__ __forceinline__ std::uint32_t pack_fp8(float a, float b, float c, float d) {
  constexpr auto kKind = kFormat == Fp8::e4m3 ? __NV_E4M3 : __NV_E5M2;
  const std::uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, kKind);
  const std::uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, kKind);
  return low | high << 16;
}

/// Bytes (row i, column j) of word[i] become bytes (row j, column i).
__device__ __forceinline__ void transpose_bytes(std::uint32_t (&word)[4]) {
  const std::uint32_t a = __byte_perm(word[0], word[1], 0x5140), b = __byte_perm(word[2], word[3], 0x5140);
  const std::uint32_t c = __byte_perm(word[0], word[1], 0x7362), d = __byte_perm(word[2], word[3], 0x7362);
  word[0] = __byte_perm(a, b, 0x5410);
  word[1] = __byte_perm(a, b, 0x7632);
  word[2] = __byte_perm(c, d, 0x5410);
  word[3] = __byte_perm(c, d, 0x7632);
}

/// Writes the tile's columns as rows: a thread has 16 rows of four columns.
__device__ __forceinline__ void store_transposed(const std::uint32_t* tile, std::uint32_t first_row,
                                                 std::uint32_t first_column, std::uint32_t rows, std::uint32_t columns,
                                                 std::uint8_t* transposed) {
  const int lane = threadIdx.x % 32, group = lane % 8, word = threadIdx.x / 32 * 4 + lane / 8;
  const std::uint32_t row = first_row + 16 * group, column = first_column + 4 * word;
  if (row >= rows || column >= columns) return;
  std::uint32_t block[4][4];  // [four rows][row, then column]
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int k = 0; k < 4; ++k) block[i][k] = tile[word_at(16 * group + 4 * i + k, word)];
    transpose_bytes(block[i]);
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    *reinterpret_cast<uint4*>(transposed + static_cast<std::size_t>(column + k) * rows + row) =
        make_uint4(block[0][k], block[1][k], block[2][k], block[3][k]);
  }
}

/// Adds the block's largest magnitude to scale->next; the last block makes that the one to go by.
__device__ __forceinline__ void note_largest(float mine, Fp8Scale* scale) {
  __shared__ float shared[kThreads / 32];
  mine = warp_max(mine);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (const float other : shared) mine = fmaxf(mine, other);
  atomicMax(&scale->next, __float_as_uint(mine));
  __threadfence();
  const std::uint32_t blocks = gridDim.x * gridDim.y;
  if (atomicInc(&scale->arrived, blocks - 1) != blocks - 1) return;
  __threadfence();
  scale->largest = atomicExch(&scale->next, 0);
}

template <Fp8 kFormat>
__global__ void __launch_bounds__(kThreads) quantize_kernel(const __nv_bfloat16* from, std::uint32_t rows,
                                                            std::uint32_t columns, Fp8Scale* state, Fp8Matrix to) {
  __shared__ std::uint32_t tile[kWords];
  constexpr float kLargest = kFormat == Fp8::e4m3 ? 448.0f : 57344.0f;
  constexpr float kMargin = 2.0f;
  const float magnitude = kMargin * __uint_as_float(*const_cast<const volatile std::uint32_t*>(&state->largest));
  const float scale = magnitude > 0.0f ? fminf(kLargest / magnitude, 1e30f) : 1.0f;
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *to.inverse_scale = 1.0f / scale;
  const std::uint32_t first_row = blockIdx.x * kTile, first_column = blockIdx.y * kTile;
  const std::uint32_t offset = threadIdx.x % 16 * 8, column = first_column + offset;
  float mine = 0.0f;
#pragma unroll
  for (int pass = 0; pass < kTile / 16; ++pass) {
    const std::uint32_t local = pass * 16 + threadIdx.x / 16, row = first_row + local;
    if (row >= rows || column >= columns) continue;
    const std::size_t at = static_cast<std::size_t>(row) * columns + column;
    float v[8];
    load<8>(from + at, v);
#pragma unroll
    for (float& value : v) {
      mine = fmaxf(mine, fabsf(value));
      value *= scale;
    }
    const uint2 packed = {pack_fp8<kFormat>(v[0], v[1], v[2], v[3]), pack_fp8<kFormat>(v[4], v[5], v[6], v[7])};
    if (to.values != nullptr) *reinterpret_cast<uint2*>(static_cast<std::uint8_t*>(to.values) + at) = packed;
    tile[word_at(local, offset / 4)] = packed.x;
    tile[word_at(local, offset / 4 + 1)] = packed.y;
  }
  note_largest(mine, state);
  if (to.transposed == nullptr) return;
  __syncthreads();
  store_transposed(tile, first_row, first_column, rows, columns, static_cast<std::uint8_t*>(to.transposed));
}

}  // namespace

void quantize(const void* from, std::int64_t rows, std::int64_t columns, Fp8 format, Fp8Scale* scale, bool first_use,
              const Fp8Matrix& to, cudaStream_t stream) {
  const auto* values = static_cast<const __nv_bfloat16*>(from);
  if (first_use) {
    const std::int64_t count = rows * columns;
    const std::uint32_t blocks = std::min(ceil_div(count, kThreads * 8), kLargestBlocks);
    largest_kernel<<<blocks, kThreads, 0, stream>>>(values, static_cast<std::size_t>(count), &scale->largest);
    DDP_CUDA(cudaGetLastError());
  }
  const dim3 grid(ceil_div(rows, kTile), ceil_div(columns, kTile));
  const auto kernel = format == Fp8::e4m3 ? quantize_kernel<Fp8::e4m3> : quantize_kernel<Fp8::e5m2>;
  kernel<<<grid, kThreads, 0, stream>>>(values, static_cast<std::uint32_t>(rows), static_cast<std::uint32_t>(columns),
                                        scale, to);
  DDP_CUDA(cudaGetLastError());
}

}  // namespace ddptrain::cuda
