#include <cuda_bf16.h>

#include <algorithm>

#include "models/cnn/cuda/launch.h"
#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/device/cuda/logged_step.cuh"
#include "runtime/ops/cuda/ptx/mma.cuh"
#include "runtime/ops/cuda/reduce.cuh"

namespace ddptrain::cuda::cnn {
namespace {

constexpr int kHidden = 128;
constexpr int kClasses = 10;
constexpr int kHeadThreads = 256;
constexpr int kHeadWarps = kHeadThreads / 32;

struct HeadShared {
  float weights[kClasses][kHidden];
  float partial[kHeadWarps][kHeadGradients];
  float bias1[kHidden];
  float bias2[16];
  HeadMetrics metrics[kHeadWarps];
};

/// Units 4 lane + {0, 1, 2, 3} of row `row` after bias, ReLU and dropout.
__device__ __forceinline__ float4 activate(const float* hidden, float feature_scale, const float* bias,
                                           const Dropout& dropout, int row) {
  const int lane = threadIdx.x % 32;
  const float4 x = reinterpret_cast<const float4*>(hidden)[static_cast<std::size_t>(row) * 32 + lane];
  const float4 b = reinterpret_cast<const float4*>(bias)[lane];
  float4 h = {fmaxf(fmaf(x.x, feature_scale, b.x), 0.0f), fmaxf(fmaf(x.y, feature_scale, b.y), 0.0f),
              fmaxf(fmaf(x.z, feature_scale, b.z), 0.0f), fmaxf(fmaf(x.w, feature_scale, b.w), 0.0f)};
  if (dropout.rate > 0.0f) {
    const std::uint32_t threshold = dropout.threshold();
    const float scale = dropout.scale();
    // Units 4 lane + {0, 1} share one Philox call, + {2, 3} the next.
    const DropoutSlot slot = dropout_slot(4 * lane);
    const Philox first = dropout.draw(slot.call, row), second = dropout.draw(slot.call + 1, row);
    h.x = random_bits(first, slot.lane) >= threshold ? h.x * scale : 0.0f;
    h.y = random_bits(first, slot.lane + 1) >= threshold ? h.y * scale : 0.0f;
    h.z = random_bits(second, slot.lane) >= threshold ? h.z * scale : 0.0f;
    h.w = random_bits(second, slot.lane + 1) >= threshold ? h.w * scale : 0.0f;
  }
  return h;
}

/// Turns logits into (softmax - onehot) * scale, or NaN if the loss is not finite, and returns the loss; every lane
/// does the same.
__device__ __forceinline__ HeadMetrics cross_entropy(float (&logits)[kClasses], int label, float scale) {
  float largest = logits[0], target = 0.0f;
  int best = 0;
#pragma unroll
  for (int c = 0; c < kClasses; ++c) {
    if (logits[c] > largest) {
      largest = logits[c];
      best = c;
    }
    if (c == label) target = logits[c];
  }
  float total = 0.0f;
#pragma unroll
  for (int c = 0; c < kClasses; ++c) total += expf(logits[c] - largest);
  const float loss = logf(total) + largest - target;
  if (!isfinite(loss)) scale = NAN;
#pragma unroll
  for (int c = 0; c < kClasses; ++c) {
    logits[c] = (expf(logits[c] - largest) / total - (c == label ? 1.0f : 0.0f)) * scale;
  }
  return {loss, best == label ? 1u : 0u};
}

struct HeadGradients {
  float4 weights[kClasses];
  float4 bias1;
  float bias2[kClasses];
};

__device__ __forceinline__ void accumulate(float4& sum, const float4& x, float factor) {
  sum.x += x.x * factor;
  sum.y += x.y * factor;
  sum.z += x.z * factor;
  sum.w += x.w * factor;
}

__device__ __forceinline__ void store_partials(const HeadGradients& gradients, HeadShared& shared, float* out) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* mine = shared.partial[warp];
#pragma unroll
  for (int c = 0; c < kClasses; ++c) {
    *reinterpret_cast<float2*>(mine + c * kHidden + 4 * lane) = {gradients.weights[c].x, gradients.weights[c].y};
    *reinterpret_cast<float2*>(mine + c * kHidden + 4 * lane + 2) = {gradients.weights[c].z, gradients.weights[c].w};
    if (lane == 0) mine[kClasses * kHidden + kHidden + c] = gradients.bias2[c];
  }
  *reinterpret_cast<float2*>(mine + kClasses * kHidden + 4 * lane) = {gradients.bias1.x, gradients.bias1.y};
  *reinterpret_cast<float2*>(mine + kClasses * kHidden + 4 * lane + 2) = {gradients.bias1.z, gradients.bias1.w};
  __syncthreads();
  for (int i = threadIdx.x; i < kHeadGradients; i += kHeadThreads) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kHeadWarps; ++w) sum += shared.partial[w][i];
    out[i] = sum;
  }
}

__global__ void __launch_bounds__(kHeadThreads)
    head_kernel(Images batch, HeadWeights weights, float feature_scale, Dropout dropout, const float* hidden,
                float gradient_scale, uint2* dhidden, float* partials, HeadMetrics* metrics) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<HeadShared*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = threadIdx.x; i < kClasses * kHidden; i += kHeadThreads) {
    shared.weights[i / kHidden][i % kHidden] =
        __bfloat162float(static_cast<const __nv_bfloat16*>(weights.fc2_weight)[i]);
  }
  if (threadIdx.x < kHidden) {
    shared.bias1[threadIdx.x] = __bfloat162float(static_cast<const __nv_bfloat16*>(weights.fc1_bias)[threadIdx.x]);
  }
  if (threadIdx.x < kClasses) {
    shared.bias2[threadIdx.x] = __bfloat162float(static_cast<const __nv_bfloat16*>(weights.fc2_bias)[threadIdx.x]);
  }
  __syncthreads();

  const BatchRows rows(batch.order, batch.step);
  wait_for_predecessor();
  HeadGradients gradients = {};
  HeadMetrics mine = {0.0f, 0u};
  for (int row = blockIdx.x * kHeadWarps + warp; row < batch.count; row += gridDim.x * kHeadWarps) {
    const int label = batch.labels[rows[row]];
    const float4 h = activate(hidden, feature_scale, shared.bias1, dropout, row);
    float logits[kClasses];
#pragma unroll
    for (int c = 0; c < kClasses; ++c) {
      const float4 w = reinterpret_cast<const float4*>(shared.weights[c])[lane];
      logits[c] = warp_sum(h.x * w.x + h.y * w.y + h.z * w.z + h.w * w.w) + shared.bias2[c];
    }
    const HeadMetrics sample = cross_entropy(logits, label, gradient_scale);
    mine.loss += sample.loss;
    mine.correct += sample.correct;
    if (dhidden == nullptr) continue;

    float4 dh = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int c = 0; c < kClasses; ++c) {
      accumulate(dh, reinterpret_cast<const float4*>(shared.weights[c])[lane], logits[c]);
      accumulate(gradients.weights[c], h, logits[c]);
      gradients.bias2[c] += logits[c];
    }
    const float scale = dropout.scale();
    dh = {h.x > 0.0f ? dh.x * scale : 0.0f, h.y > 0.0f ? dh.y * scale : 0.0f, h.z > 0.0f ? dh.z * scale : 0.0f,
          h.w > 0.0f ? dh.w * scale : 0.0f};
    accumulate(gradients.bias1, dh, 1.0f);
    dhidden[static_cast<std::size_t>(row) * 32 + lane] = {pack_bf16(dh.x * feature_scale, dh.y * feature_scale),
                                                          pack_bf16(dh.z * feature_scale, dh.w * feature_scale)};
  }
  if (lane == 0) shared.metrics[warp] = mine;
  if (dhidden != nullptr) store_partials(gradients, shared, partials + blockIdx.x * kHeadGradients);
  __syncthreads();
  if (threadIdx.x == 0) {
    HeadMetrics sum = {0.0f, 0u};
    for (const HeadMetrics& part : shared.metrics) {
      sum.loss += part.loss;
      sum.correct += part.correct;
    }
    metrics[blockIdx.x] = sum;
  }
}

/// By one warp.
__device__ __forceinline__ void add_metrics(const MetricsReduction& reduction) {
  const LoggedStep logged(reduction.step);
  const int lane = threadIdx.x % 32;
  double loss = 0.0;
  unsigned int correct = 0;
  for (int i = lane; i < reduction.blocks; i += 32) {
    loss += reduction.metrics[i].loss;
    correct += reduction.metrics[i].correct;
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    loss += __shfl_xor_sync(0xFFFFFFFFu, loss, offset);
    correct += __shfl_xor_sync(0xFFFFFFFFu, correct, offset);
  }
  if (lane == 0) {
    reduction.sums->loss += loss;
    reduction.sums->correct += correct;
    reduction.sums->samples += reduction.count;
    logged.note_sums(reduction.sums);
  }
}

constexpr int kReduceThreads = 256;
constexpr int kReduceGroups = kReduceThreads / 32;

struct Reductions {
  Reduction item[kMaxReductions];
  int first_block[kMaxReductions + 1];
  MetricsReduction metrics;
};

/// A block sums 32 neighbouring columns: every warp takes each eighth row. The last block adds the metrics.
__global__ void __launch_bounds__(kReduceThreads) reduce_kernel(Reductions reductions, bool accumulate) {
  follow_predecessor();
  if (blockIdx.x == gridDim.x - 1) {
    if (threadIdx.x < 32) add_metrics(reductions.metrics);
    return;
  }
  int k = 0;
  while (k + 1 < kMaxReductions && blockIdx.x >= reductions.first_block[k + 1]) ++k;
  const Reduction item = reductions.item[k];
  const int column = (blockIdx.x - reductions.first_block[k]) * 32 + threadIdx.x % 32;
  const int group = threadIdx.x / 32;
  float sum = 0.0f;
  if (column < item.count) {
#pragma unroll 4
    for (int row = group; row < item.rows; row += kReduceGroups) {
      sum += item.partials[static_cast<std::size_t>(row) * item.stride + column];
    }
  }
  __shared__ float sums[kReduceGroups][32];
  sums[group][threadIdx.x % 32] = sum;
  __syncthreads();
  if (group > 0 || column >= item.count) return;
  for (int i = 1; i < kReduceGroups; ++i) sum += sums[i][threadIdx.x];
  auto* gradient = static_cast<__nv_bfloat16*>(item.gradient);
  if (accumulate) sum += __bfloat162float(gradient[column]);
  gradient[column] = __float2bfloat16(sum);
}

}  // namespace

int head_forward_backward(const Images& batch, const HeadWeights& weights, float feature_scale, const Dropout& dropout,
                          const float* hidden, float gradient_scale, void* dhidden, float* partials,
                          HeadMetrics* metrics, cudaStream_t stream) {
  const int blocks = std::min(kHeadBlocks, (batch.count + kHeadWarps - 1) / kHeadWarps);
  reserve_shared_memory(head_kernel, sizeof(HeadShared));
  launch_early(head_kernel, blocks, kHeadThreads, sizeof(HeadShared), stream, batch, weights, feature_scale, dropout,
               hidden, gradient_scale, static_cast<uint2*>(dhidden), partials, metrics);
  return blocks;
}

void reduce(const Reduction* reductions, int count, bool accumulate, const MetricsReduction& metrics,
            cudaStream_t stream) {
  Reductions all = {};
  int blocks = 0;
  for (int i = 0; i <= kMaxReductions; ++i) {
    all.first_block[i] = blocks;
    if (i >= count) continue;
    all.item[i] = reductions[i];
    blocks += (reductions[i].count + 31) / 32;
  }
  all.metrics = metrics;
  launch_early(reduce_kernel, blocks + 1, kReduceThreads, 0, stream, all, accumulate);
}

}  // namespace ddptrain::cuda::cnn
