#pragma once

#include "models/cnn/cuda/layout.cuh"

/// Code that the two kernels of the convolutions' gradients share. One multiplies by warpgroups, the other by warps.
///
/// The gradient of conv2's output lies like activations (layout.cuh); a tap of the data gradient is a shift, too.

namespace ddptrain::cuda::cnn {

// Gradient of conv2's output on the 26-wide grid: columns 24 and 25, and kHalo rows before and after, are zero, so that
// every tap of the data gradient reads inside.
inline constexpr int kHalo = 2 * kSide1;
inline constexpr int kPlaneBytes2 = (kHalo + kTiles1 * 64 + 1) * 16;
static_assert((kPlaneBytes2 / 16) % 2 == 1 && (kPlaneBytes1 / 16) % 2 == 1);

inline constexpr int kItems = kChunks / kThreads;  // pooled pixels x channel planes per thread
static_assert(kItems * kThreads == kChunks && kThreads % kPlanes2 == 0);
inline constexpr int kTapsPerGroup = 3;
inline constexpr int kGroups = kThreads / 128;

/// Data that a thread fetches while the tensor cores work on an image: gradients of the next, pixels of the one after.
struct Fetched {
  std::uint32_t pixels;
  uint4 gradients[kItems];
  std::uint32_t winners[kItems];
};

__device__ __forceinline__ void fetch(Fetched& next, int row, const uint4* dfeatures, const std::uint32_t* winners) {
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const std::size_t chunk = static_cast<std::size_t>(row) * kChunks + i * kThreads + threadIdx.x;
    next.gradients[i] = dfeatures[chunk];
    next.winners[i] = winners[chunk];
  }
}

/// Bit `bit` of each of the two bytes that belong to channel pair k, spread over the halves of a word.
template <int kBit>
__device__ __forceinline__ std::uint32_t winner_mask(std::uint32_t codes, int k) {
  const std::uint32_t shifted = codes << (7 - kBit);
  return k % 2 == 0 ? permute_bytes<0x9988>(shifted) : permute_bytes<0xBBAA>(shifted);
}

/// Undoes dropout and pooling: writes the gradient of conv2's output in channel plane threadIdx.x % kPlanes2, which
/// lies at `plane`, and adds its sum per channel to dbias.
__device__ __forceinline__ void scatter(const Fetched& fetched, unsigned char* plane, float (&dbias)[8]) {
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int pooled = (i * kThreads + threadIdx.x) / kPlanes2;
    const int pixel = kHalo + 2 * (pooled / kPooledSide) * kSide1 + 2 * (pooled % kPooledSide);
    const std::uint32_t packed[4] = {fetched.gradients[i].x, fetched.gradients[i].y, fetched.gradients[i].z,
                                     fetched.gradients[i].w};
    const std::uint32_t codes = fetched.winners[i];
    std::uint32_t out[4][4];  // [position][pair]
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const std::uint32_t right = k < 2 ? winner_mask<0>(codes, k) : winner_mask<3>(codes, k);
      const std::uint32_t lower = k < 2 ? winner_mask<1>(codes, k) : winner_mask<4>(codes, k);
      const std::uint32_t alive = k < 2 ? winner_mask<2>(codes, k) : winner_mask<5>(codes, k);
      const std::uint32_t gradient = packed[k] & alive;
      out[0][k] = gradient & ~right & ~lower;
      out[1][k] = gradient & right & ~lower;
      out[2][k] = gradient & ~right & lower;
      out[3][k] = gradient & right & lower;
      const float2 pair = unpack_bf16(gradient);
      dbias[2 * k] += pair.x;
      dbias[2 * k + 1] += pair.y;
    }
#pragma unroll
    for (int position = 0; position < 4; ++position) {
      const int at = pixel + (position / 2) * kSide1 + position % 2;
      *reinterpret_cast<uint4*>(plane + at * 16) =
          make_uint4(out[position][0], out[position][1], out[position][2], out[position][3]);
    }
  }
}

/// The part of a warp of the gradient of conv1's activated output: d[16 s + 4 j + i] is a part of the gradient at pixel
/// + s, for the 16 pixels from `start` on and channels 8 j to 8 j + 7, as accumulators of mma.cuh. Applies ReLU's mask
/// and adds the products with the image's windows: conv1 weight gradient [tap, channel] in rows 0 to 8 of `dconv1`,
/// bias gradient in row 9.
__device__ __forceinline__ void conv1_gradient_tile(const float (&d)[48], int start, const unsigned char* hidden,
                                                    const __nv_bfloat16* image, float (&dconv1)[4][4]) {
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  std::uint32_t pixels[2][4], last[2][4];  // of tap g and, where g is 0, tap 8; four in a row
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto* corner =
        reinterpret_cast<const std::uint16_t*>(image) + window(min(start + 8 * half + 2 * q, kPixels1 - 4));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pixels[half][i] = corner[tap_offset(g) + i];
      last[half][i] = g == 0 ? corner[tap_offset(8) + min(i, 3)] : (g == 1 ? 0x3F80u : 0u);
    }
  }
#pragma unroll
  for (int s = 0; s < 3; ++s) {
    const std::uint32_t a[4] = {pixels[0][s] | pixels[0][s + 1] << 16, last[0][s] | last[0][s + 1] << 16,
                                pixels[1][s] | pixels[1][s + 1] << 16, last[1][s] | last[1][s + 1] << 16};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const unsigned char* active = hidden + j * kPlaneBytes1 + (start + g + s) * 16 + q * 4;
      const float* part = d + 16 * s + 4 * j;
      const std::uint32_t low =
          pack_bf16(part[0], part[1]) & greater_bf16(*reinterpret_cast<const std::uint32_t*>(active), 0u);
      const std::uint32_t high =
          pack_bf16(part[2], part[3]) & greater_bf16(*reinterpret_cast<const std::uint32_t*>(active + 8 * 16), 0u);
      mma_m16n8k16(dconv1[j], a, transpose_8x8(low), transpose_8x8(high));
    }
  }
}

__device__ __forceinline__ void store_conv2_gradients(const float (&dweights)[kTapsPerGroup][16], int first_tap,
                                                      float* out) {
  const int warp = (threadIdx.x / 32) % 4, g = (threadIdx.x % 32) / 4, q = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < kTapsPerGroup; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float* low = out + ((16 * warp + g) * kTaps + first_tap + i) * kChannels1 + 8 * j + 2 * q;
      float* high = low + 8 * kTaps * kChannels1;
      *reinterpret_cast<float2*>(low) = make_float2(dweights[i][4 * j], dweights[i][4 * j + 1]);
      *reinterpret_cast<float2*>(high) = make_float2(dweights[i][4 * j + 2], dweights[i][4 * j + 3]);
    }
  }
}

/// Sums what the warps and threads hold of the small gradients, through `scratch` (shared memory, free by now).
__device__ __forceinline__ void store_small_gradients(const float (&dconv1)[4][4], const float (&dbias2)[8],
                                                      float* scratch, float* out) {
  float* windows = scratch;                    // [warp][16 taps][32 channels]
  float* biases = scratch + kWarps * 16 * 32;  // [thread / 8][64 channels]
  const int warp = threadIdx.x / 32, g = (threadIdx.x % 32) / 4, q = threadIdx.x % 4;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      windows[(warp * 16 + g + 8 * (i / 2)) * 32 + 8 * j + 2 * q + i % 2] = dconv1[j][i];
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) biases[threadIdx.x * 8 + i] = dbias2[i];
  __syncthreads();
  for (int i = threadIdx.x; i < 64 + 10 * 32; i += kThreads) {
    float sum = 0.0f;
    if (i < 64) {
      for (int k = 0; k < kThreads / kPlanes2; ++k) sum += biases[k * 64 + i];
      out[i] = sum;
    } else {
      const int tap = (i - 64) / 32, channel = (i - 64) % 32;
      for (int k = 0; k < kWarps; ++k) sum += windows[(k * 16 + tap) * 32 + channel];
      out[64 + (tap < kTaps ? channel * kTaps + tap : kTaps * 32 + channel)] = tap < kTaps ? sum / 255.0f : sum;
    }
  }
}

}  // namespace ddptrain::cuda::cnn
