#include "models/cnn/cuda/launch.h"
#include "models/cnn/cuda/layout.cuh"
#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/device/cuda/launch.cuh"

namespace ddptrain::cuda::cnn {
namespace {

// Gradient of conv2's output on the 26-wide grid: columns 24 and 25, and kHalo rows before and after, are zero, so that
// every tap of the data gradient reads inside.
constexpr int kHalo = 2 * kSide1;
constexpr int kPlaneBytes2 = (kHalo + kTiles1 * 64 + 1) * 16;
static_assert((kPlaneBytes2 / 16) % 2 == 1 && (kPlaneBytes1 / 16) % 2 == 1);

constexpr int kItems = kChunks / kThreads;  // pooled pixels x channel planes per thread
static_assert(kItems * kThreads == kChunks && kThreads % kPlanes2 == 0);
constexpr int kTapsPerGroup = 3;
constexpr int kGroups = kThreads / 128;
constexpr int kMaxTiles = (kTiles1 + kGroups - 1) / kGroups;  // of the data gradient, per warpgroup

struct BackwardShared {
  alignas(128) unsigned char weights2[kWeights2Bytes];
  alignas(128) unsigned char hidden[2][kPlanes1 * kPlaneBytes1];
  alignas(128) unsigned char gradient2[kPlanes2 * kPlaneBytes2];
  alignas(16) __nv_bfloat16 image[2][kPixels];
  alignas(16) Conv1Weights conv1;
};

/// What a thread fetches while the tensor cores work on an image: gradients of the next, pixels of the one after.
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

/// Undoes dropout and pooling: writes the gradient of conv2's output and adds its sum per channel to dbias.
__device__ __forceinline__ void scatter(const Fetched& fetched, unsigned char* gradient2, float (&dbias)[8]) {
  unsigned char* plane = gradient2 + (threadIdx.x % kPlanes2) * kPlaneBytes2;
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

/// Parts of the gradient of conv1's activated output: d[16 s + ..] [64 pixels from `first`, 32 channels] is the sum
/// over r of gradient2[pixel - 26 r] times weights2[:, r, s, :], a part of the gradient at pixel + s. It is zero where
/// pixel lies in columns 24 and 25, so pixel + s is always in the same row.
__device__ __forceinline__ void data_gradient_tile(float (&d)[48], std::uint32_t gradient2, std::uint32_t weights2,
                                                   int first) {
  const Operand a(gradient2 + first * 16, kPlaneBytes2, 128);
  const Operand b(weights2, 128, kChannels2 * 16);
  wgmma_fence();
#pragma unroll
  for (int r = 0; r < 3; ++r) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      wgmma_m64n96k16_transposed_b(d, a + ((kHalo - r * kSide1) * 16 + 2 * k * kPlaneBytes2),
                                   b + (3 * r * kPlanes1 * kChannels2 + 16 * k) * 16, r + k > 0);
    }
  }
  wgmma_commit();
  wgmma_wait<0>();
}

/// Applies ReLU's mask to the parts of a tile and adds their products with the image's windows: conv1 weight gradient
/// [tap, channel] in rows 0 to 8 of `dconv1`, bias gradient in row 9.
__device__ __forceinline__ void conv1_gradient_tile(const float (&d)[48], int first, const unsigned char* hidden,
                                                    const __nv_bfloat16* image, float (&dconv1)[4][4]) {
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const int start = first + ((threadIdx.x / 32) % 4) * 16;  // this warp's 16 pixels
  std::uint32_t pixels[2][4], last[2][4];                   // of tap g and, where g is 0, tap 8; four in a row
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

/// dweights[i] [64 channels2, 32 channels1] += sum over pixels of gradient2[pixel] hidden[pixel + shift of tap i].
__device__ __forceinline__ void weight_gradient(float (&dweights)[kTapsPerGroup][16], std::uint32_t gradient2,
                                                std::uint32_t hidden, int first_tap) {
  const int warp = (threadIdx.x / 32) % 4, lane = threadIdx.x % 32;
  // Matrix i of ldmatrix: channels 16 warp + 8 (i % 2), image row i / 2 of the pair, eight pixels.
  const std::uint32_t fragment =
      gradient2 + (2 * warp + (lane / 8) % 2) * kPlaneBytes2 + (kHalo + (lane / 16) * kSide1 + lane % 8) * 16;
  static_assert(kTapsPerGroup == 3);  // one row of taps
  const Operand b(hidden + (first_tap / 3) * kSide1 * 16, kSide1 * 16, kPlaneBytes1);
  std::uint32_t a[2][4];
#pragma unroll 1
  for (int row = 0; row < kSide2; row += 4) {
#pragma unroll
    for (int k = 0; k < 6; ++k) {  // two pairs of rows, three groups of eight columns
      const int offset = ((row + 2 * (k / 3)) * kSide1 + 8 * (k % 3)) * 16;
      ldmatrix_x4_transposed(a[k % 2], fragment + offset);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kTapsPerGroup; ++i) {
        wgmma_m64n32k16_transposed_b(dweights[i], a[k % 2], b + (offset + i * 16));
      }
      wgmma_commit();
      wgmma_wait<1>();
    }
  }
  wgmma_wait<0>();
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

__global__ void __launch_bounds__(kThreads, 1)
    conv_backward_kernel(Images batch, ConvWeights weights, const uint4* dfeatures, const std::uint32_t* winners,
                         float* partials) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<BackwardShared*>(memory);
  const int group = uniform(threadIdx.x / 128);
  const BatchRows rows(batch.order, batch.step);
  const std::uint32_t gradient2 = shared_address(shared.gradient2), weights2 = shared_address(shared.weights2);

  Fetched next;
  next.pixels = fetch_pixels(batch.images, rows, blockIdx.x);
  load_conv2_weights(static_cast<const __nv_bfloat16*>(weights.conv2_weight), shared.weights2);
  load_conv1_weights(static_cast<const __nv_bfloat16*>(weights.conv1_weight),
                     static_cast<const __nv_bfloat16*>(weights.conv1_bias), &shared.conv1);
  for (int i = threadIdx.x; i < kPlanes2 * kPlaneBytes2 / 16; i += kThreads) {
    reinterpret_cast<uint4*>(shared.gradient2)[i] = make_uint4(0, 0, 0, 0);
  }
  for (int i = threadIdx.x; i < 2 * kPlanes1 * kPlaneBytes1 / 16; i += kThreads) {
    reinterpret_cast<uint4*>(shared.hidden)[i] = make_uint4(0, 0, 0, 0);
  }

  float dweights[kTapsPerGroup][16] = {}, dconv1[4][4] = {}, dbias2[8] = {};
  store_pixels(next.pixels, shared.image[0]);
  if (blockIdx.x + gridDim.x < batch.count) next.pixels = fetch_pixels(batch.images, rows, blockIdx.x + gridDim.x);
  __syncthreads();
  conv1_forward(shared.image[0], shared.conv1, shared.hidden[0]);
  wait_for_predecessor();
  fetch(next, blockIdx.x, dfeatures, winners);
  int now = 0;
  for (int row = blockIdx.x; row < batch.count; row += gridDim.x, now ^= 1) {
    const int following = row + gridDim.x;
    __syncthreads();  // the last image's products are done
    scatter(next, shared.gradient2, dbias2);
    store_pixels(next.pixels, shared.image[now ^ 1]);
    fence_async_proxy();
    __syncthreads();
    if (following < batch.count) fetch(next, following, dfeatures, winners);
    if (following + gridDim.x < batch.count) next.pixels = fetch_pixels(batch.images, rows, following + gridDim.x);
#pragma unroll 1
    for (int i = 0; i <= kMaxTiles; ++i) {
      // At different times, so that its products fill the gaps that the other warpgroups leave.
      if (i == 2 * group)
        weight_gradient(dweights, gradient2, shared_address(shared.hidden[now]), kTapsPerGroup * group);
      const int tile = i * kGroups + group;
      if (tile >= kTiles1) continue;
      float d[48];
      data_gradient_tile(d, gradient2, weights2, 64 * tile);
      conv1_gradient_tile(d, 64 * tile, shared.hidden[now], shared.image[now], dconv1);
    }
    if (following < batch.count) conv1_forward(shared.image[now ^ 1], shared.conv1, shared.hidden[now ^ 1]);
  }
  let_successor_start();
  __syncthreads();
  float* out = partials + static_cast<std::size_t>(blockIdx.x) * kConvGradients;
  store_conv2_gradients(dweights, kTapsPerGroup * group, out);
  store_small_gradients(dconv1, dbias2, reinterpret_cast<float*>(shared.gradient2), out + kChannels2 * 288);
}

}  // namespace

int conv_backward(const Images& batch, const ConvWeights& weights, const void* dfeatures, const std::uint32_t* winners,
                  float* partials, int multiprocessors, cudaStream_t stream) {
  static_assert(sizeof(BackwardShared) <= 227 * 1024);
  DDP_CUDA(cudaFuncSetAttribute(conv_backward_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(sizeof(BackwardShared))));
  const int blocks = std::min(batch.count, multiprocessors);
  launch_early(conv_backward_kernel, blocks, kThreads, sizeof(BackwardShared), stream, batch, weights,
               static_cast<const uint4*>(dfeatures), winners, partials);
  return blocks;
}

}  // namespace ddptrain::cuda::cnn
