#include "models/cnn/cuda/conv_backward.cuh"
#include "models/cnn/cuda/launch.h"
#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/ptx/wgmma.cuh"

// Gradients of the convolutions for blocks of at most 99 KiB of shared memory: an image is worked on in four passes,
// each over 16 of conv2's channels. The gradients of conv2's weights belong to these channels, so a quarter of the
// warps computes them while the others compute the pass's share of the data gradient; in each pass it is another
// quarter.

namespace ddptrain::cuda::cnn {
namespace {

constexpr int kPasses = 4;
constexpr int kPassChannels = kChannels2 / kPasses;
constexpr int kPassPlanes = kPlanes2 / kPasses;
static_assert(kPassChannels == 16);  // of one product, and of one warp's weight gradients

struct PassShared {
  alignas(128) unsigned char weights2[kWeights2Bytes / kPasses];  // [tap * 4 + channel1 / 8][channel2 of the pass][8]
  alignas(128) unsigned char hidden[kPlanes1 * kPlaneBytes1];
  alignas(128) unsigned char gradient2[kPassPlanes * kPlaneBytes2];
  alignas(16) __nv_bfloat16 image[2][kPixels];
  alignas(16) Conv1Weights conv1;
};
static_assert(sizeof(PassShared) <= 99 * 1024);

__device__ __forceinline__ void load_pass_weights(const __nv_bfloat16* weights, int pass, PassShared& shared) {
  for (int i = threadIdx.x; i < kWeights2Bytes / kPasses / 16; i += kThreads) {
    const int channel2 = pass * kPassChannels + i % kPassChannels, plane = i / kPassChannels;
    reinterpret_cast<uint4*>(shared.weights2)[i] =
        reinterpret_cast<const uint4*>(weights)[channel2 * kTaps * kPlanes1 + plane];
  }
}

/// d of conv1_gradient_tile(), over the channels of a pass.
__device__ __forceinline__ void data_gradient(float (&d)[48], std::uint32_t gradient2, std::uint32_t weights2,
                                              int start) {
  const int lane = threadIdx.x % 32;
  const std::uint32_t a_at =
      gradient2 + (lane / 16) * kPlaneBytes2 + (kHalo + start + (lane / 8) % 2 * 8 + lane % 8) * 16;
  const std::uint32_t b_at = weights2 + (lane / 16 * kPassChannels + (lane / 8) % 2 * 8 + lane % 8) * 16;
#pragma unroll
  for (float& value : d) value = 0.0f;
#pragma unroll
  for (int r = 0; r < 3; ++r) {
    std::uint32_t a[4], b[4];
    ldmatrix_x4(a, a_at - r * kSide1 * 16);
#pragma unroll
    for (int j = 0; j < 12; j += 2) {  // eight channels of a tap in the row
      ldmatrix_x4_transposed(b, b_at + (3 * r * kPlanes1 + j) * kPassChannels * 16);
      mma_m16n8k16(reinterpret_cast<float(&)[4]>(d[4 * j]), a, b[0], b[1]);
      mma_m16n8k16(reinterpret_cast<float(&)[4]>(d[4 * j + 4]), a, b[2], b[3]);
    }
  }
}

/// dweights[i] [16 channels2, 32 channels1] += sum over pixels of gradient2[pixel] hidden[pixel + shift of tap i of the
/// row].
__device__ __forceinline__ void weight_gradient(float (&dweights)[kTapsPerGroup][16], std::uint32_t gradient2,
                                                std::uint32_t hidden, int tap_row) {
  const int lane = threadIdx.x % 32;
  const std::uint32_t a_at = gradient2 + (lane / 8) % 2 * kPlaneBytes2 + (kHalo + (lane / 16) * kSide1 + lane % 8) * 16;
  const std::uint32_t b_at =
      hidden + (lane / 16) * kPlaneBytes1 + ((tap_row + (lane / 8) % 2) * kSide1 + lane % 8) * 16;
#pragma unroll 1
  for (int row = 0; row < kSide2; row += 2) {
#pragma unroll
    for (int column = 0; column < kSide2; column += 8) {
      const int offset = (row * kSide1 + column) * 16;
      std::uint32_t a[4], b[4];
      ldmatrix_x4_transposed(a, a_at + offset);
#pragma unroll
      for (int i = 0; i < kTapsPerGroup; ++i) {
#pragma unroll
        for (int j = 0; j < kPlanes1; j += 2) {
          ldmatrix_x4_transposed(b, b_at + offset + i * 16 + j * kPlaneBytes1);
          mma_m16n8k16(reinterpret_cast<float(&)[4]>(dweights[i][4 * j]), a, b[0], b[1]);
          mma_m16n8k16(reinterpret_cast<float(&)[4]>(dweights[i][4 * j + 4]), a, b[2], b[3]);
        }
      }
    }
  }
}

__device__ __forceinline__ void backward_images(const Images& batch, const ConvWeights& weights, const uint4* dfeatures,
                                                const std::uint32_t* winners, float* partials, PassShared& shared) {
  const int warp = uniform(threadIdx.x / 32), group = warp / 4;  // a group takes a row of taps
  const int own_pass = warp % 4;                                 // in which this warp computes weight gradients
  const BatchRows rows(batch.order, batch.step);
  const std::uint32_t gradient2 = shared_address(shared.gradient2), weights2 = shared_address(shared.weights2);
  const auto* conv2_weight = static_cast<const __nv_bfloat16*>(weights.conv2_weight);

  Fetched next;
  next.pixels = fetch_pixels(batch.images, rows, blockIdx.x);
  load_conv1_weights(static_cast<const __nv_bfloat16*>(weights.conv1_weight),
                     static_cast<const __nv_bfloat16*>(weights.conv1_bias), &shared.conv1);
  for (int i = threadIdx.x; i < static_cast<int>(sizeof(shared.gradient2)) / 16; i += kThreads) {
    reinterpret_cast<uint4*>(shared.gradient2)[i] = make_uint4(0, 0, 0, 0);
  }
  for (int i = threadIdx.x; i < static_cast<int>(sizeof(shared.hidden)) / 16; i += kThreads) {
    reinterpret_cast<uint4*>(shared.hidden)[i] = make_uint4(0, 0, 0, 0);
  }

  float dweights[kTapsPerGroup][16] = {}, dconv1[4][4] = {}, dbias2[8] = {};
  store_pixels(next.pixels, shared.image[0]);
  if (blockIdx.x + gridDim.x < batch.count) next.pixels = fetch_pixels(batch.images, rows, blockIdx.x + gridDim.x);
  __syncthreads();
  conv1_forward(shared.image[0], shared.conv1, shared.hidden);
  wait_for_predecessor();
  fetch(next, blockIdx.x, dfeatures, winners);
  int now = 0;
  for (int row = blockIdx.x; row < batch.count; row += gridDim.x, now ^= 1) {
    const int following = row + gridDim.x;
#pragma unroll 1
    for (int pass = 0; pass < kPasses; ++pass) {
      __syncthreads();  // the products before are done
      const int plane = static_cast<int>(threadIdx.x % kPlanes2) - pass * kPassPlanes;
      if (plane >= 0 && plane < kPassPlanes) scatter(next, shared.gradient2 + plane * kPlaneBytes2, dbias2);
      load_pass_weights(conv2_weight, pass, shared);
      if (pass == 0) store_pixels(next.pixels, shared.image[now ^ 1]);
      __syncthreads();
      if (pass == kPasses - 1 && following < batch.count) fetch(next, following, dfeatures, winners);
      if (pass == 0 && following + gridDim.x < batch.count) {
        next.pixels = fetch_pixels(batch.images, rows, following + gridDim.x);
      }
      if (own_pass == pass) {
        weight_gradient(dweights, gradient2, shared_address(shared.hidden), group);
        continue;
      }
      const int place = 3 * group + own_pass - (own_pass > pass ? 1 : 0);  // among the nine others
#pragma unroll 1
      for (int tile = place; tile < 4 * kTiles1; tile += 9) {
        float d[48];
        data_gradient(d, gradient2, weights2, 16 * tile);
        conv1_gradient_tile(d, 16 * tile, shared.hidden, shared.image[now], dconv1);
      }
    }
    if (following >= batch.count) continue;
    __syncthreads();
    conv1_forward(shared.image[now ^ 1], shared.conv1, shared.hidden);
  }
  let_successor_start();
  __syncthreads();
  float* out = partials + static_cast<std::size_t>(blockIdx.x) * kConvGradients;
  store_conv2_gradients(dweights, kTapsPerGroup * group, out);
  store_small_gradients(dconv1, dbias2, reinterpret_cast<float*>(shared.hidden), out + kChannels2 * 288);
}

/// Empty in code of 9.0a, and of GPUs older than 8.0.
__global__ void __launch_bounds__(kThreads, 1)
    by_warps_kernel(Images batch, ConvWeights weights, const uint4* dfeatures, const std::uint32_t* winners,
                    float* partials) {
#if __CUDA_ARCH__ >= 800 && !DDP_WGMMA
  extern __shared__ __align__(128) unsigned char memory[];
  backward_images(batch, weights, dfeatures, winners, partials, *reinterpret_cast<PassShared*>(memory));
#endif
}

}  // namespace

int conv_backward_by_warps(const Images& batch, const ConvWeights& weights, const uint4* dfeatures,
                           const std::uint32_t* winners, float* partials, int multiprocessors, cudaStream_t stream) {
  const int blocks = std::min(batch.count, multiprocessors);
  reserve_shared_memory(by_warps_kernel, sizeof(PassShared));
  launch_early(by_warps_kernel, blocks, kThreads, sizeof(PassShared), stream, batch, weights, dfeatures, winners,
               partials);
  return blocks;
}

}  // namespace ddptrain::cuda::cnn
