#include "runtime/backend/cuda/cnn_launch.h"
#include "runtime/backend/cuda/cnn_layout.cuh"
#include "runtime/backend/cuda/cuda_utils.h"

namespace ddptrain::cuda::cnn {
namespace {

struct ForwardShared {
  alignas(128) unsigned char weights2[kWeights2Bytes];
  alignas(128) unsigned char hidden[kPlanes1 * kPlaneBytes1];  // conv1's output
  alignas(16) __nv_bfloat16 image[kPixels];
  alignas(16) Conv1Weights conv1;
  alignas(16) float bias2[kChannels2];
};

/// conv2 on the 8 x 8 output pixels that start at row `top`, column `left`. Row 8 y + x of the product is pixel
/// (top + y, left + x), so that a thread holds both rows of a pooling window and its neighbour lane the other column.
__device__ __forceinline__ void conv2_tile(float (&d)[32], std::uint32_t hidden, std::uint32_t weights, int top,
                                           int left) {
  wgmma_fence();
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
    const int pixel = (top + tap / 3) * kSide1 + left + tap % 3;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto a = operand(hidden + pixel * 16 + 2 * half * kPlaneBytes1, kPlaneBytes1, kSide1 * 16);
      const auto b = operand(weights + (tap * kPlanes1 + 2 * half) * kChannels2 * 16, kChannels2 * 16, 128);
      wgmma_m64n64k16(d, a, b, tap + half > 0);
    }
  }
  wgmma_commit();
}

/// One thread's share of a pooled row: the largest of each 2 x 2 window and its position, for channels
/// 32 half + 8 j + 2 q + e, index 2 j + e, where half is the lane's column parity.
struct Pooled {
  float value[8];
  std::uint32_t position[8];
};

__device__ __forceinline__ Pooled max_pool(const float (&d)[32], bool right) {
  float column[16];
  std::uint32_t lower = 0;  // bit i: the lower row won in column[i]
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float top = d[4 * j + e], bottom = d[4 * j + 2 + e];
      column[2 * j + e] = fmaxf(top, bottom);
      lower |= static_cast<std::uint32_t>(bottom > top) << (2 * j + e);
    }
  }
  const std::uint32_t other_lower = __shfl_xor_sync(0xFFFFFFFFu, lower, 4) >> (right ? 8 : 0);
  const std::uint32_t own_lower = lower >> (right ? 8 : 0);
  Pooled pooled;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float other = __shfl_xor_sync(0xFFFFFFFFu, right ? column[i] : column[8 + i], 4);
    const float own = right ? column[8 + i] : column[i];
    const std::uint32_t own_dy = (own_lower >> i) & 1, other_dy = (other_lower >> i) & 1;
    const float left_value = right ? other : own, right_value = right ? own : other;
    const std::uint32_t left_dy = right ? other_dy : own_dy, right_dy = right ? own_dy : other_dy;
    const bool take_right = right_value > left_value || (right_value == left_value && right_dy < left_dy);
    pooled.value[i] = take_right ? right_value : left_value;
    pooled.position[i] = take_right ? 2 * right_dy + 1 : 2 * left_dy;
  }
  return pooled;
}

/// Lane q of four starts with words (q, j), j = 0 to 3, and ends with words (j, q).
__device__ __forceinline__ uint4 transpose_words(const std::uint32_t (&word)[4], int q) {
  const bool odd = q & 1, upper = q & 2;
  const std::uint32_t r0 = __shfl_xor_sync(0xFFFFFFFFu, odd ? word[0] : word[1], 1);
  const std::uint32_t r1 = __shfl_xor_sync(0xFFFFFFFFu, odd ? word[2] : word[3], 1);
  const uint2 low = odd ? make_uint2(r0, word[1]) : make_uint2(word[0], r0);    // words of column 0 or 1
  const uint2 high = odd ? make_uint2(r1, word[3]) : make_uint2(word[2], r1);   // words of column 2 or 3
  const std::uint32_t s0 = __shfl_xor_sync(0xFFFFFFFFu, upper ? low.x : high.x, 2);
  const std::uint32_t s1 = __shfl_xor_sync(0xFFFFFFFFu, upper ? low.y : high.y, 2);
  return upper ? make_uint4(s0, s1, high.x, high.y) : make_uint4(low.x, low.y, s0, s1);
}

/// The same for bytes: byte j of lane q's word goes to byte q of lane j's.
__device__ __forceinline__ std::uint32_t transpose_bytes(std::uint32_t word, int q) {
  const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, word, 1);
  const std::uint32_t pairs = q & 1 ? __byte_perm(other, word, 0x7351) : __byte_perm(word, other, 0x6240);
  const std::uint32_t across = __shfl_xor_sync(0xFFFFFFFFu, pairs, 2);
  return q & 2 ? __byte_perm(across, pairs, 0x7632) : __byte_perm(pairs, across, 0x5410);
}

/// Bias, ReLU and dropout of a pooled row, then the stores.
__device__ __forceinline__ void store_pooled(const Pooled& pooled, const float* bias, const Dropout& dropout,
                                             std::uint32_t row, int pixel, int half, int q, __nv_bfloat16* features,
                                             std::uint32_t* winners) {
  const Philox random = dropout.rate > 0.0f ? dropout.draw(pixel * 8 + half * 4 + q, row) : Philox{};
  const std::uint32_t threshold = dropout.threshold();
  const float scale = dropout.scale();
  std::uint32_t words[4];
  std::uint32_t codes = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float2 b = *reinterpret_cast<const float2*>(bias + 32 * half + 8 * j + 2 * q);
    float out[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int i = 2 * j + e;
      const float value = pooled.value[i] + (e == 0 ? b.x : b.y);
      const bool alive = value > 0.0f && half_word(random, i) >= threshold;
      out[e] = alive ? value * scale : 0.0f;
      codes |= alive ? 1u << (4 * i + pooled.position[i]) : 0u;
    }
    words[j] = pack_bf16(out[0], out[1]);
  }
  const int chunk = pixel * 8 + 4 * half + q;
  reinterpret_cast<uint4*>(features)[static_cast<std::size_t>(row) * kChunks + chunk] = transpose_words(words, q);
  winners[static_cast<std::size_t>(row) * kChunks + chunk] = transpose_bytes(codes, q);
}

__global__ void __launch_bounds__(kThreads, 2)
    conv_forward_kernel(Images batch, ConvWeights weights, Dropout dropout, __nv_bfloat16* features,
                        std::uint32_t* winners) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<ForwardShared*>(memory);
  const int group = threadIdx.x / 128, warp = (threadIdx.x / 32) % 4, lane = threadIdx.x % 32;
  const std::uint64_t step = batch.order.shuffle ? batch.step.value() : 0;

  std::uint32_t pixels = fetch_pixels(batch.images, batch.order, step, blockIdx.x);
  load_conv2_weights(static_cast<const __nv_bfloat16*>(weights.conv2_weight), shared.weights2);
  load_conv1_weights(static_cast<const __nv_bfloat16*>(weights.conv1_weight),
                     static_cast<const __nv_bfloat16*>(weights.conv1_bias), &shared.conv1);
  if (threadIdx.x < kChannels2) {
    shared.bias2[threadIdx.x] = __bfloat162float(static_cast<const __nv_bfloat16*>(weights.conv2_bias)[threadIdx.x]);
  }

  for (int row = blockIdx.x; row < batch.count; row += gridDim.x) {
    store_pixels(pixels, shared.image);
    __syncthreads();
    conv1_forward(shared.image, shared.conv1, shared.hidden);
    fence_async_proxy();
    __syncthreads();
    if (row + gridDim.x < batch.count) pixels = fetch_pixels(batch.images, batch.order, step, row + gridDim.x);
#pragma unroll 1
    for (int column = 0; column < 3; ++column) {
      float d[32];
      conv2_tile(d, shared_address(shared.hidden), shared_address(shared.weights2), 8 * group, 8 * column);
      wgmma_wait<0>();
      const int g = lane / 4;
      const int pixel = (4 * group + warp) * kPooledSide + 4 * column + g / 2;
      store_pooled(max_pool(d, g & 1), shared.bias2, dropout, row, pixel, g & 1, lane % 4, features, winners);
    }
    __syncthreads();
  }
}

}  // namespace

void conv_forward(const Images& batch, const ConvWeights& weights, const Dropout& dropout, void* features,
                  std::uint32_t* winners, int multiprocessors, cudaStream_t stream) {
  static_assert(2 * (sizeof(ForwardShared) + 1024) <= 227 * 1024);
  DDP_CUDA(cudaFuncSetAttribute(conv_forward_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(sizeof(ForwardShared))));
  const int blocks = std::min(batch.count, 2 * multiprocessors);
  conv_forward_kernel<<<blocks, kThreads, sizeof(ForwardShared), stream>>>(
      batch, weights, dropout, static_cast<__nv_bfloat16*>(features), winners);
  DDP_CUDA(cudaGetLastError());
}

}  // namespace ddptrain::cuda::cnn
