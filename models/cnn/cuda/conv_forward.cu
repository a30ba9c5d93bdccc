#include "models/cnn/cuda/launch.h"
#include "models/cnn/cuda/layout.cuh"
#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/ops/cuda/ptx/wgmma.cuh"

namespace ddptrain::cuda::cnn {
namespace {

/// Bytes of a plane of conv1's output. Without warpgroup products a plane has no padding, so that two blocks fit into
/// the 164 KiB of a multiprocessor of 8.0.
template <bool kWarpgroups>
constexpr int kHiddenPlane = kWarpgroups ? kPlaneBytes1 : (kPixels1 + 1) * 16;
static_assert((kHiddenPlane<false> / 16) % 2 == 1);

template <bool kWarpgroups>
struct ForwardShared {
  alignas(128) unsigned char weights2[kWeights2Bytes];
  alignas(128) unsigned char hidden[kPlanes1 * kHiddenPlane<kWarpgroups>];  // conv1's output
  alignas(16) __nv_bfloat16 image[kPixels];
  alignas(16) Conv1Weights conv1;
};

/// d += conv2 on the 8 x 8 output pixels that start at row `top`, column `left`. Row 8 y + x of the product is pixel
/// (top + y, left + x), so that a thread holds both rows of a pooling window and its neighbour lane the other column.
#if DDP_WGMMA
__device__ __forceinline__ void conv2_tile(float (&d)[32], std::uint32_t hidden, std::uint32_t weights, int top,
                                           int left) {
  const Operand a(hidden + (top * kSide1 + left) * 16, kPlaneBytes1, kSide1 * 16);
  const Operand b(weights, kChannels2 * 16, 128);
  wgmma_fence();
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      wgmma_m64n64k16(d, a + (((tap / 3) * kSide1 + tap % 3) * 16 + 2 * half * kPlaneBytes1),
                      b + (tap * kPlanes1 + 2 * half) * kChannels2 * 16, true);
    }
  }
  wgmma_commit();
}
#else
__device__ __forceinline__ void conv2_tile(float (&d)[32], std::uint32_t hidden, std::uint32_t weights, int top,
                                           int left) {
  const int warp = (threadIdx.x / 32) % 4, lane = threadIdx.x % 32;
  const int line = top + 2 * warp + (lane / 8) % 2;  // of matrix lane / 8 of a; lane / 16 is its half of the channels
  const std::uint32_t a_at = hidden + (lane / 16) * kHiddenPlane<false> + (line * kSide1 + left + lane % 8) * 16;
  const std::uint32_t b_at = weights + ((lane / 8) % 2 * kChannels2 + lane / 16 * 8 + lane % 8) * 16;
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t a[4], b[4];
      ldmatrix_x4(a, a_at + (tap / 3 * kSide1 + tap % 3) * 16 + 2 * half * kHiddenPlane<false>);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        ldmatrix_x4(b, b_at + ((tap * kPlanes1 + 2 * half) * kChannels2 + 16 * j) * 16);
        mma_m16n8k16(reinterpret_cast<float(&)[4]>(d[8 * j]), a, b[0], b[1]);
        mma_m16n8k16(reinterpret_cast<float(&)[4]>(d[8 * j + 4]), a, b[2], b[3]);
      }
    }
  }
}
#endif

/// One thread's share of a pooled row: four pairs of channels 32 half + 8 j + 2 q + {0, 1}, where half is the parity of
/// the lane's column. The masks are all ones in the half of a channel whose largest element is in the right column
/// or the lower row.
struct Pooled {
  std::uint32_t value[4];
  std::uint32_t right[4];
  std::uint32_t lower[4];
};

__device__ __forceinline__ Pooled max_pool(const float (&d)[32], bool odd) {
  std::uint32_t column[8], lower[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const std::uint32_t top = pack_relu_bf16(d[4 * j], d[4 * j + 1]);
    const std::uint32_t bottom = pack_relu_bf16(d[4 * j + 2], d[4 * j + 3]);
    column[j] = max_bf16(top, bottom);
    lower[j] = greater_bf16(bottom, top);
  }
  Pooled pooled;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const std::uint32_t own = odd ? column[4 + j] : column[j];
    const std::uint32_t own_lower = odd ? lower[4 + j] : lower[j];
    const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, odd ? column[j] : column[4 + j], 4);
    const std::uint32_t other_lower = __shfl_xor_sync(0xFFFFFFFFu, odd ? lower[j] : lower[4 + j], 4);
    pooled.value[j] = max_bf16(own, other);
    pooled.right[j] = odd ? greater_bf16(own, other) : greater_bf16(other, own);
    const std::uint32_t take_own = odd ? pooled.right[j] : ~pooled.right[j];
    pooled.lower[j] = (take_own & own_lower) | (~take_own & other_lower);
  }
  return pooled;
}

/// Lane q of four starts with words (q, j), j = 0 to 3, and ends with words (j, q).
__device__ __forceinline__ uint4 transpose_words(const std::uint32_t (&word)[4], int q) {
  const bool odd = q & 1, upper = q & 2;
  const std::uint32_t r0 = __shfl_xor_sync(0xFFFFFFFFu, odd ? word[0] : word[1], 1);
  const std::uint32_t r1 = __shfl_xor_sync(0xFFFFFFFFu, odd ? word[2] : word[3], 1);
  const uint2 low = odd ? make_uint2(r0, word[1]) : make_uint2(word[0], r0);   // words of column 0 or 1
  const uint2 high = odd ? make_uint2(r1, word[3]) : make_uint2(word[2], r1);  // words of column 2 or 3
  const std::uint32_t s0 = __shfl_xor_sync(0xFFFFFFFFu, upper ? low.x : high.x, 2);
  const std::uint32_t s1 = __shfl_xor_sync(0xFFFFFFFFu, upper ? low.y : high.y, 2);
  return upper ? make_uint4(s0, s1, high.x, high.y) : make_uint4(low.x, low.y, s0, s1);
}

/// The same for the three bits of each pair of channels. Starts with pair j = a + 2 b in bits 3 b to 3 b + 2 of
/// bytes a (first channel) and a + 2 (second), ends in the order that conv_forward documents.
__device__ __forceinline__ std::uint32_t transpose_codes(std::uint32_t codes, int q) {
  const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, codes, 1);
  const std::uint32_t pairs = q & 1 ? __byte_perm(other, codes, 0x7531) : __byte_perm(codes, other, 0x6420);
  const std::uint32_t across = __shfl_xor_sync(0xFFFFFFFFu, pairs, 2);
  constexpr std::uint32_t kLow = 0x07070707u, kHigh = 0x38383838u;
  return q & 2 ? ((across >> 3) & kLow) | (pairs & kHigh) : (pairs & kLow) | ((across << 3) & kHigh);
}

/// Dropout of a pooled row, then the stores. bf16 pair j of the thread and word j of the Philox call belong together.
__device__ __forceinline__ void store_pooled(const Pooled& pooled, const Dropout& dropout, std::uint32_t row, int pixel,
                                             int half, int q, uint4* features, std::uint32_t* winners) {
  const Philox random = dropout.rate > 0.0f ? dropout.draw(pixel * 8 + half * 4 + q, row) : Philox{};
  const std::uint32_t threshold = dropout.threshold() * 0x00010001u;
  std::uint32_t words[4];
  std::uint32_t codes = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const std::uint32_t kept = (random.word[j] | 0x80008000u) - threshold;  // sign bit of each half
    const std::uint32_t alive = permute_bytes<0xBB99>(kept) & greater_bf16(pooled.value[j], 0u);
    words[j] = pooled.value[j] & alive;
    const std::uint32_t bit = 0x00010001u << (8 * (j % 2) + 3 * (j / 2));
    codes |= (pooled.right[j] & bit) | (pooled.lower[j] & (bit << 1)) | (alive & (bit << 2));
  }
  const std::size_t chunk = static_cast<std::size_t>(row) * kChunks + pixel * 8 + 4 * half + q;
  features[chunk] = transpose_words(words, q);
  winners[chunk] = transpose_codes(codes, q);
}

/// The warpgroups of a block take turns at warpgroup products, so that one multiplies while the others pool: turn g is
/// taken by warpgroup g and given by the one before.
constexpr int kGroups = kThreads / 128;
template <bool kWarpgroups>
__device__ __forceinline__ void take_turn(int group) {
  if constexpr (kWarpgroups) barrier_wait(1 + group, 256);
}
template <bool kWarpgroups>
__device__ __forceinline__ void give_turn(int group) {
  if constexpr (kWarpgroups) barrier_arrive(1 + (group + 1) % kGroups, 256);
}

template <bool kWarpgroups>
__device__ __forceinline__ void forward_images(const Images& batch, const ConvWeights& weights, const Dropout& dropout,
                                               uint4* features, std::uint32_t* winners,
                                               ForwardShared<kWarpgroups>& shared) {
  const int group = uniform(threadIdx.x / 128), warp = (threadIdx.x / 32) % 4;
  const int g = (threadIdx.x % 32) / 4, q = threadIdx.x % 4;
  const BatchRows rows(batch.order, batch.step);

  std::uint32_t pixels = fetch_pixels(batch.images, rows, blockIdx.x);
  load_conv2_weights(static_cast<const __nv_bfloat16*>(weights.conv2_weight), shared.weights2);
  load_conv1_weights(static_cast<const __nv_bfloat16*>(weights.conv1_weight),
                     static_cast<const __nv_bfloat16*>(weights.conv1_bias), &shared.conv1);
  std::uint32_t bias2[8];  // channels 8 j + 2 q + {0, 1}
#pragma unroll
  for (int j = 0; j < 8; ++j) bias2[j] = static_cast<const std::uint32_t*>(weights.conv2_bias)[4 * j + q];

  if (group == kGroups - 1) give_turn<kWarpgroups>(group);
  for (int row = blockIdx.x; row < batch.count; row += gridDim.x) {
    store_pixels(pixels, shared.image);
    __syncthreads();
    conv1_forward<kHiddenPlane<kWarpgroups>>(shared.image, shared.conv1, shared.hidden);
    if constexpr (kWarpgroups) fence_async_proxy();
    __syncthreads();
    if (row + gridDim.x < batch.count) pixels = fetch_pixels(batch.images, rows, row + gridDim.x);
#pragma unroll 1
    for (int column = 0; column < 3; ++column) {
      float d[32];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 bias = unpack_bf16(bias2[j]);
        d[4 * j] = d[4 * j + 2] = bias.x;
        d[4 * j + 1] = d[4 * j + 3] = bias.y;
      }
      take_turn<kWarpgroups>(group);
      conv2_tile(d, shared_address(shared.hidden), shared_address(shared.weights2), 8 * group, 8 * column);
      give_turn<kWarpgroups>(group);
      if constexpr (kWarpgroups) wgmma_wait<0>();
      const int pixel = (4 * group + warp) * kPooledSide + 4 * column + g / 2;
      store_pooled(max_pool(d, g & 1), dropout, row, pixel, g & 1, q, features, winners);
    }
    __syncthreads();
  }
}

/// A kernel of warpgroup products has a body in code of 9.0a, the other one in all other code from 8.0 on.
template <bool kWarpgroups>
__global__ void __launch_bounds__(kThreads, 2)
    conv_forward_kernel(Images batch, ConvWeights weights, Dropout dropout, uint4* features, std::uint32_t* winners) {
#if __CUDA_ARCH__ >= 800
  if constexpr (kWarpgroups == kHasWarpgroups) {
    extern __shared__ __align__(128) unsigned char memory[];
    forward_images<kWarpgroups>(batch, weights, dropout, features, winners,
                                *reinterpret_cast<ForwardShared<kWarpgroups>*>(memory));
  }
#endif
}

template <bool kWarpgroups>
void launch(const Images& batch, const ConvWeights& weights, const Dropout& dropout, void* features,
            std::uint32_t* winners, int multiprocessors, cudaStream_t stream) {
  constexpr std::size_t kBytes = sizeof(ForwardShared<kWarpgroups>);
  static_assert(2 * (kBytes + 1024) <= (kWarpgroups ? 228 : 164) * 1024);
  const auto kernel = conv_forward_kernel<kWarpgroups>;
  reserve_shared_memory(kernel, kBytes);
  const int blocks = std::min(batch.count, 2 * multiprocessors);
  kernel<<<blocks, kThreads, kBytes, stream>>>(batch, weights, dropout, static_cast<uint4*>(features), winners);
  DDP_CUDA(cudaGetLastError());
}

}  // namespace

void conv_forward(const Images& batch, const ConvWeights& weights, const Dropout& dropout, void* features,
                  std::uint32_t* winners, int multiprocessors, cudaStream_t stream) {
  const auto launched = multiplies_by_warpgroups() ? launch<true> : launch<false>;
  launched(batch, weights, dropout, features, winners, multiprocessors, stream);
}

}  // namespace ddptrain::cuda::cnn
