#include <algorithm>

#include "runtime/backend/cuda/cnn_launch.h"
#include "runtime/backend/cuda/cuda_utils.h"
#include "runtime/backend/cuda/wgmma.cuh"

namespace ddptrain::cuda::cnn {
namespace {

constexpr int kFeatures = 9216;
constexpr int kUnits = 128;
constexpr int kRowChunks = kFeatures / 8;  // of 16 bytes, in a row of features
constexpr int kUnitChunks = kUnits / 8;
constexpr int kHiddenThreads = 256;  // two warpgroups, each with half of a tile's rows
constexpr int kTile = 128;           // rows and columns of what a thread block computes

/// Planes of eight columns, each an array of 16-byte rows; an odd number of rows, so that neighbouring planes use
/// other banks. As a matrix operand, rows are M or N and planes K, or, transposed, rows are K and planes M or N.
template <int kRows, int kColumns>
struct Planes {
  static constexpr int kPlanes = kColumns / 8;
  static constexpr int kPlaneBytes = (kRows + 1) * 16;
  alignas(128) unsigned char bytes[kPlanes * kPlaneBytes];

  __device__ __forceinline__ Operand operand(int first_row) const {
    return {shared_address(bytes) + first_row * 16, kPlaneBytes, 128};
  }
  __device__ __forceinline__ Operand transposed(int first_column) const {
    return {shared_address(bytes) + first_column / 8 * kPlaneBytes, 128, kPlaneBytes};
  }
  static constexpr int step() { return 2 * kPlaneBytes; }     // bytes from one 16 columns to the next
  static constexpr int transposed_step() { return 16 * 16; }  // and from one 16 rows to the next

  /// Starts copying from row `first_row` and 16-byte column `first_chunk` of a matrix with `rows` rows; zeros beyond.
  __device__ __forceinline__ void load(const uint4* matrix, int row_chunks, int first_row, int rows, int first_chunk) {
    const std::uint32_t shared = shared_address(bytes);
#pragma unroll
    for (int i = 0; i < kRows * kPlanes / kHiddenThreads; ++i) {
      const int chunk = i * kHiddenThreads + threadIdx.x;
      const int row = chunk / kPlanes, plane = chunk % kPlanes;
      const bool valid = first_row + row < rows;
      const std::size_t from = static_cast<std::size_t>(valid ? first_row + row : 0) * row_chunks;
      copy_async(shared + plane * kPlaneBytes + row * 16, matrix + from + first_chunk + plane, valid);
    }
  }
};

constexpr int kDepth = 96;  // features per stage of the forward product
constexpr int kBlocks = kFeatures / kDepth;
constexpr int kStages = 4;
static_assert(kBlocks * kDepth == kFeatures);

struct HiddenShared {
  Planes<kTile, kDepth> features[kStages];
  Planes<kUnits, kDepth> weights[kStages];
};

/// Thread block (tile, split): 128 rows of the batch times a stretch of the features.
__global__ void __launch_bounds__(kHiddenThreads, 1)
    hidden_kernel(const uint4* features, const uint4* weights, int count, int blocks_per_split, float* partials) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<HiddenShared*>(memory);
  const int group = uniform(threadIdx.x / 128);
  const int first_row = blockIdx.x * kTile;
  const int first = blockIdx.y * blocks_per_split;
  const int blocks = min(blocks_per_split, kBlocks - first);

  const auto load = [&](int block) {
    if (block < blocks) {
      const int chunk = (first + block) * (kDepth / 8);
      shared.features[block % kStages].load(features, kRowChunks, first_row, count, chunk);
      shared.weights[block % kStages].load(weights, kRowChunks, 0, kUnits, chunk);
    }
    copy_commit();
  };
  for (int block = 0; block < kStages - 1; ++block) load(block);

  float d[64];
  for (int block = 0; block < blocks; ++block) {
    copy_wait<kStages - 2>();
    fence_async_proxy();
    __syncthreads();  // this stage is there, and the one before has been read by all
    load(block + kStages - 1);
    const Operand a = shared.features[block % kStages].operand(64 * group);
    const Operand b = shared.weights[block % kStages].operand(0);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      wgmma_m64n128k16<0, 0>(d, a + k * Planes<kTile, kDepth>::step(), b + k * Planes<kUnits, kDepth>::step(),
                             block + k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
  }

  const int g = (threadIdx.x % 32) / 4, q = threadIdx.x % 4;
  const int row = first_row + group * 64 + (threadIdx.x / 32) % 4 * 16 + g;
  float* out = partials + (static_cast<std::size_t>(blockIdx.y) * count + row) * kUnits + 2 * q;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    if (row < count) *reinterpret_cast<float2*>(out + 8 * j) = make_float2(d[4 * j], d[4 * j + 1]);
    if (row + 8 < count) {
      *reinterpret_cast<float2*>(out + 8 * kUnits + 8 * j) = make_float2(d[4 * j + 2], d[4 * j + 3]);
    }
  }
}

/// d of a tile as bf16, 16 bytes a thread, to rows below `rows` of a matrix with kFeatures columns.
__device__ __forceinline__ void store_tile(float (&d)[64], int first_row, int rows, int first_chunk, bool accumulate,
                                           __nv_bfloat16* matrix) {
  const int g = (threadIdx.x % 32) / 4, q = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + threadIdx.x / 32 * 16 + g + 8 * half;
    const bool valid = row < rows;
    uint4* out =
        reinterpret_cast<uint4*>(matrix) + static_cast<std::size_t>(valid ? row : 0) * kRowChunks + first_chunk;
#pragma unroll
    for (int j = 0; j < 16; j += 4) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float2 sum = make_float2(d[4 * (j + i) + 2 * half], d[4 * (j + i) + 2 * half + 1]);
        if (accumulate) {
          const float2 before = unpack_bf16(reinterpret_cast<const std::uint32_t*>(out + j + i)[q]);
          sum.x += before.x;
          sum.y += before.y;
        }
        words[i] = pack_bf16(sum.x, sum.y);
      }
      const uint4 chunk = transpose_words(words, q);
      if (valid) out[j + q] = chunk;
    }
  }
}

constexpr int kBatchDepth = 64;  // rows of the batch per stage of the weight gradient
constexpr int kBatchStages = 3;
constexpr int kColumnTiles = kFeatures / kTile;

union BackwardHiddenShared {
  struct {
    Planes<kBatchDepth, kUnits> dhidden[kBatchStages];
    Planes<kBatchDepth, kTile> features[kBatchStages];
  } weight;
  struct {
    Planes<kTile, kUnits> dhidden;
    Planes<kUnits, kTile> weights;
  } feature;
};

/// d [units, 128 features] = dhidden^T features.
__device__ __forceinline__ void weight_gradient_tile(float (&d)[64], BackwardHiddenShared& memory, const uint4* dhidden,
                                                     const uint4* features, int count, int first_chunk) {
  auto& shared = memory.weight;
  const int group = uniform(threadIdx.x / 128);
  const int blocks = (count + kBatchDepth - 1) / kBatchDepth;
  const auto load = [&](int block) {
    if (block < blocks) {
      const int row = block * kBatchDepth;
      shared.dhidden[block % kBatchStages].load(dhidden, kUnitChunks, row, count, 0);
      shared.features[block % kBatchStages].load(features, kRowChunks, row, count, first_chunk);
    }
    copy_commit();
  };
  for (int block = 0; block < kBatchStages - 1; ++block) load(block);
  for (int block = 0; block < blocks; ++block) {
    copy_wait<kBatchStages - 2>();
    fence_async_proxy();
    __syncthreads();
    load(block + kBatchStages - 1);
    const Operand a = shared.dhidden[block % kBatchStages].transposed(64 * group);
    const Operand b = shared.features[block % kBatchStages].transposed(0);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kBatchDepth / 16; ++k) {
      constexpr int kStep = Planes<kBatchDepth, kUnits>::transposed_step();
      wgmma_m64n128k16<1, 1>(d, a + k * kStep, b + k * kStep, block + k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
  }
}

/// d [128 rows of the batch, 128 features] = dhidden weights.
__device__ __forceinline__ void feature_gradient_tile(float (&d)[64], BackwardHiddenShared& memory,
                                                      const uint4* dhidden, const uint4* weights, int count,
                                                      int first_row, int first_chunk) {
  auto& shared = memory.feature;
  shared.dhidden.load(dhidden, kUnitChunks, first_row, count, 0);
  shared.weights.load(weights, kRowChunks, 0, kUnits, first_chunk);
  copy_commit();
  copy_wait<0>();
  fence_async_proxy();
  __syncthreads();
  const Operand a = shared.dhidden.operand(64 * uniform(threadIdx.x / 128));
  const Operand b = shared.weights.transposed(0);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kUnits / 16; ++k) {
    wgmma_m64n128k16<0, 1>(d, a + k * Planes<kTile, kUnits>::step(), b + k * Planes<kUnits, kTile>::transposed_step(),
                           k > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
}

/// The first kColumnTiles blocks take the weight gradient, which is longer; the others a tile of dfeatures each.
__global__ void __launch_bounds__(kHiddenThreads, 2)
    hidden_backward_kernel(const uint4* dhidden, const uint4* features, const uint4* weights, int count,
                           bool accumulate, __nv_bfloat16* dweights, __nv_bfloat16* dfeatures) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<BackwardHiddenShared*>(memory);
  const int chunk = blockIdx.x % kColumnTiles * (kTile / 8);
  float d[64];
  if (blockIdx.x < kColumnTiles) {
    weight_gradient_tile(d, shared, dhidden, features, count, chunk);
    store_tile(d, 0, kUnits, chunk, accumulate, dweights);
  } else {
    const int first_row = (blockIdx.x / kColumnTiles - 1) * kTile;
    feature_gradient_tile(d, shared, dhidden, weights, count, first_row, chunk);
    store_tile(d, first_row, count, chunk, false, dfeatures);
  }
}

}  // namespace

int hidden_forward(const void* features, const void* fc1_weight, int count, float* partials, int multiprocessors,
                   cudaStream_t stream) {
  const int tiles = (count + kTile - 1) / kTile;
  const int most_splits = std::clamp(multiprocessors / tiles, 1, kMaxSplits);
  const int blocks_per_split = (kBlocks + most_splits - 1) / most_splits;
  const int splits = (kBlocks + blocks_per_split - 1) / blocks_per_split;
  DDP_CUDA(cudaFuncSetAttribute(hidden_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(sizeof(HiddenShared))));
  hidden_kernel<<<dim3(tiles, splits), kHiddenThreads, sizeof(HiddenShared), stream>>>(
      static_cast<const uint4*>(features), static_cast<const uint4*>(fc1_weight), count, blocks_per_split, partials);
  DDP_CUDA(cudaGetLastError());
  return splits;
}

void hidden_backward(const void* dhidden, const void* features, const void* fc1_weight, int count, bool accumulate,
                     void* fc1_gradient, void* dfeatures, cudaStream_t stream) {
  const int tiles = (count + kTile - 1) / kTile;
  DDP_CUDA(cudaFuncSetAttribute(hidden_backward_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(sizeof(BackwardHiddenShared))));
  hidden_backward_kernel<<<kColumnTiles*(1 + tiles), kHiddenThreads, sizeof(BackwardHiddenShared), stream>>>(
      static_cast<const uint4*>(dhidden), static_cast<const uint4*>(features), static_cast<const uint4*>(fc1_weight),
      count, accumulate, static_cast<__nv_bfloat16*>(fc1_gradient), static_cast<__nv_bfloat16*>(dfeatures));
  DDP_CUDA(cudaGetLastError());
}

}  // namespace ddptrain::cuda::cnn
