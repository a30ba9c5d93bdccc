#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "runtime/core/step.h"
#include "runtime/ops/cuda/ptx/mma.cuh"

/// Shape of the network and layout of an image in shared memory, for all fused convolution kernels.
///
/// Activations of an image lie as planes of eight channels; a plane is an array of 16-byte rows, one per pixel of a
/// grid 26 pixels wide. A 3x3 tap (r, s) is then a shift by 26 r + s rows. Planes have an odd number of rows, so that
/// neighbouring planes fall into different banks.

namespace ddptrain::cuda::cnn {

inline constexpr int kImage = 28;  // input pixels per side
inline constexpr int kPixels = kImage * kImage;
inline constexpr int kSide1 = 26;  // conv1 output per side
inline constexpr int kPixels1 = kSide1 * kSide1;
inline constexpr int kChannels1 = 32;
inline constexpr int kPlanes1 = kChannels1 / 8;
inline constexpr int kTiles1 = (kPixels1 + 63) / 64;          // of 64 pixels each
inline constexpr int kPlaneBytes1 = (kTiles1 * 64 + 3) * 16;  // of whole tiles, and what their taps reach
inline constexpr int kSide2 = 24;                             // conv2 output per side
inline constexpr int kChannels2 = 64;
inline constexpr int kPlanes2 = kChannels2 / 8;
inline constexpr int kTaps = 9;
inline constexpr int kPooledSide = 12;
inline constexpr int kPooledPixels = kPooledSide * kPooledSide;
inline constexpr int kFeatures = kPooledPixels * kChannels2;
inline constexpr int kChunks = kFeatures / 8;  // eight channels of one pooled pixel
inline constexpr int kThreads = 384;           // three warpgroups
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kWeights2Bytes = kTaps * kChannels1 * kChannels2 * 2;

/// conv2 weights in shared memory: [tap * 4 + channel1 / 8][channel2][8]: rows of eight input channels, which is
/// K-major for the forward product (N = channel2, K = channel1) and N-major for the data gradient.
__device__ __forceinline__ void load_conv2_weights(const __nv_bfloat16* weights, unsigned char* shared) {
  for (int i = threadIdx.x; i < kWeights2Bytes / 16; i += kThreads) {
    const int channel2 = i % kChannels2;
    const int plane = i / kChannels2;
    reinterpret_cast<uint4*>(shared)[i] = reinterpret_cast<const uint4*>(weights)[channel2 * kTaps * kPlanes1 + plane];
  }
}

/// conv1 weights and bias in shared memory, f32.
struct Conv1Weights {
  __nv_bfloat16 taps[kChannels1][16];  // taps 9 to 15 are zero
  float bias[kChannels1];
};

__device__ __forceinline__ void load_conv1_weights(const __nv_bfloat16* weights, const __nv_bfloat16* bias,
                                                   Conv1Weights* shared) {
  for (int i = threadIdx.x; i < kChannels1 * 16; i += kThreads) {
    const int tap = i % 16;
    shared->taps[i / 16][tap] = tap < kTaps ? weights[(i / 16) * kTaps + tap] : __float2bfloat16(0.0f);
  }
  if (threadIdx.x < kChannels1) shared->bias[threadIdx.x] = __bfloat162float(bias[threadIdx.x]);
}

/// Four pixels of row `row` of the batch for each of the first 196 threads.
__device__ __forceinline__ std::uint32_t fetch_pixels(const std::uint8_t* images, const BatchRows& rows, int row) {
  if (threadIdx.x >= kPixels / 4) return 0;
  const auto* image = reinterpret_cast<const std::uint32_t*>(images + static_cast<std::size_t>(rows[row]) * kPixels);
  return image[threadIdx.x];
}

/// Pixel values 0 to 255 are exact in bf16; the factor 1 / 255 is applied to sums.
__device__ __forceinline__ void store_pixels(std::uint32_t pixels, __nv_bfloat16* image) {
  if (threadIdx.x >= kPixels / 4) return;
  const uint2 four = {pack_bf16(static_cast<float>(pixels & 0xFF), static_cast<float>((pixels >> 8) & 0xFF)),
                      pack_bf16(static_cast<float>((pixels >> 16) & 0xFF), static_cast<float>(pixels >> 24))};
  reinterpret_cast<uint2*>(image)[threadIdx.x] = four;
}

__device__ __forceinline__ int tap_offset(int tap) { return (tap / 3) * kImage + tap % 3; }

__device__ __forceinline__ std::uint32_t pack_pixels(const __nv_bfloat16* image, int first, int second) {
  const std::uint32_t low = *reinterpret_cast<const std::uint16_t*>(image + first);
  const std::uint32_t high = *reinterpret_cast<const std::uint16_t*>(image + second);
  return low | (high << 16);
}

/// First pixel of the 3x3 window of conv1's output pixel p.
__device__ __forceinline__ int window(int p) { return (p / kSide1) * kImage + p % kSide1; }

/// ReLU(conv1 + bias) of the image into the planes at `out`; every warp takes 16 pixels at a time.
template <int kPlaneBytes = kPlaneBytes1>
__device__ __forceinline__ void conv1_forward(const __nv_bfloat16* image, const Conv1Weights& weights,
                                              unsigned char* out) {
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  std::uint32_t b0[4], b1[4];
  float2 bias[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    b0[j] = *reinterpret_cast<const std::uint32_t*>(&weights.taps[8 * j + g][2 * q]);
    b1[j] = *reinterpret_cast<const std::uint32_t*>(&weights.taps[8 * j + g][8 + 2 * q]);
    bias[j] = *reinterpret_cast<const float2*>(&weights.bias[8 * j + 2 * q]);
  }
  const int first = tap_offset(2 * q), second = tap_offset(2 * q + 1);
  for (int tile = threadIdx.x / 32; tile * 16 < kPixels1; tile += kWarps) {
    const int p0 = tile * 16 + g, p1 = p0 + 8;
    const int w0 = window(min(p0, kPixels1 - 1)), w1 = window(min(p1, kPixels1 - 1));
    const std::uint32_t a[4] = {pack_pixels(image, w0 + first, w0 + second),
                                pack_pixels(image, w1 + first, w1 + second),
                                q == 0 ? pack_pixels(image, w0 + tap_offset(8), w0) & 0xFFFFu : 0u,
                                q == 0 ? pack_pixels(image, w1 + tap_offset(8), w1) & 0xFFFFu : 0u};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      mma_m16n8k16(d, a, b0[j], b1[j]);
      unsigned char* plane = out + j * kPlaneBytes + q * 4;
      constexpr float kScale = 1.0f / 255.0f;
      const auto activate = [&](float x, float y) {
        return pack_relu_bf16(fmaf(x, kScale, bias[j].x), fmaf(y, kScale, bias[j].y));
      };
      if (p0 < kPixels1) *reinterpret_cast<std::uint32_t*>(plane + p0 * 16) = activate(d[0], d[1]);
      if (p1 < kPixels1) *reinterpret_cast<std::uint32_t*>(plane + p1 * 16) = activate(d[2], d[3]);
    }
  }
}

}  // namespace ddptrain::cuda::cnn
