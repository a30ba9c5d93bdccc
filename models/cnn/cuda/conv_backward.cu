#include "models/cnn/cuda/conv_backward.cuh"
#include "models/cnn/cuda/launch.h"
#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/ptx/wgmma.cuh"

namespace ddptrain::cuda::cnn {
namespace {

constexpr int kMaxTiles = (kTiles1 + kGroups - 1) / kGroups;  // of the data gradient, per warpgroup

struct BackwardShared {
  alignas(128) unsigned char weights2[kWeights2Bytes];
  alignas(128) unsigned char hidden[2][kPlanes1 * kPlaneBytes1];
  alignas(128) unsigned char gradient2[kPlanes2 * kPlaneBytes2];
  alignas(16) __nv_bfloat16 image[2][kPixels];
  alignas(16) Conv1Weights conv1;
};

#if DDP_WGMMA
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
#endif

/// Empty but in code of 9.0a.
__global__ void __launch_bounds__(kThreads, 1)
    conv_backward_kernel(Images batch, ConvWeights weights, const uint4* dfeatures, const std::uint32_t* winners,
                         float* partials) {
#if DDP_WGMMA
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
    scatter(next, shared.gradient2 + (threadIdx.x % kPlanes2) * kPlaneBytes2, dbias2);
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
      const int start = 64 * tile + ((threadIdx.x / 32) % 4) * 16;  // of this warp
      conv1_gradient_tile(d, start, shared.hidden[now], shared.image[now], dconv1);
    }
    if (following < batch.count) conv1_forward(shared.image[now ^ 1], shared.conv1, shared.hidden[now ^ 1]);
  }
  let_successor_start();
  __syncthreads();
  float* out = partials + static_cast<std::size_t>(blockIdx.x) * kConvGradients;
  store_conv2_gradients(dweights, kTapsPerGroup * group, out);
  store_small_gradients(dconv1, dbias2, reinterpret_cast<float*>(shared.gradient2), out + kChannels2 * 288);
#endif
}

}  // namespace

int conv_backward(const Images& batch, const ConvWeights& weights, const void* dfeatures, const std::uint32_t* winners,
                  float* partials, int multiprocessors, cudaStream_t stream) {
  const auto* gradients = static_cast<const uint4*>(dfeatures);
  if (!multiplies_by_warpgroups()) {
    return conv_backward_by_warps(batch, weights, gradients, winners, partials, multiprocessors, stream);
  }
  static_assert(sizeof(BackwardShared) <= 227 * 1024);
  reserve_shared_memory(conv_backward_kernel, sizeof(BackwardShared));
  const int blocks = std::min(batch.count, multiprocessors);
  launch_early(conv_backward_kernel, blocks, kThreads, sizeof(BackwardShared), stream, batch, weights, gradients,
               winners, partials);
  return blocks;
}

}  // namespace ddptrain::cuda::cnn
