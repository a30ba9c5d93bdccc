#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/core/step.h"
#include "runtime/device/device.h"

/// Launchers of the fused CNN kernels; bf16 data, everything on the given stream. Pointers are device memory, 16-byte
/// aligned. Errors of the launch are thrown.

namespace ddptrain::cuda::cnn {

struct Images {
  const std::uint8_t* images;  ///< [dataset, 28, 28]
  const std::uint8_t* labels;  ///< [dataset]
  SampleOrder order;
  StepRef step;
  int count;
};

struct ConvWeights {
  const void* conv1_weight;  ///< [32, 3, 3, 1]
  const void* conv1_bias;
  const void* conv2_weight;  ///< [64, 3, 3, 32]
  const void* conv2_bias;
};

inline constexpr int kConvGradients = 64 * 288 + 64 + 32 * 9 + 32;  ///< conv2 weight, bias, conv1 weight, bias

/// features [count, 9216] = max-pool(ReLU(conv2(ReLU(conv1(pixels / 255))))) where dropout keeps them, 0 elsewhere:
/// dropout's factor 1 / (1 - rate) is left to the head.
/// winners [count, 1152] u32: where the gradient of every eight channels of a pooled pixel goes. Channel 2 k + e has,
/// in byte 2 (k % 2) + e, at bit 3 (k / 2): whether the right column won; the next bit: the lower row; the next:
/// whether there is a gradient at all.
void conv_forward(const Images& batch, const ConvWeights& weights, const Dropout& dropout, void* features,
                  std::uint32_t* winners, int multiprocessors, cudaStream_t stream);

/// Gradients of the four convolution parameters summed over the images of each thread block:
/// partials [blocks, kConvGradients] f32, blocks <= multiprocessors. dfeatures [count, 9216]. Returns blocks.
int conv_backward(const Images& batch, const ConvWeights& weights, const void* dfeatures, const std::uint32_t* winners,
                  float* partials, int multiprocessors, cudaStream_t stream);

/// conv_backward() of GPUs without warpgroup products.
int conv_backward_by_warps(const Images& batch, const ConvWeights& weights, const uint4* dfeatures,
                           const std::uint32_t* winners, float* partials, int multiprocessors, cudaStream_t stream);

/// Between the two products with fc1: head_forward_backward takes hidden [count, 128] f32 = features fc1_weight^T.
struct HeadWeights {
  const void* fc1_bias;    ///< [128]
  const void* fc2_weight;  ///< [10, 128]
  const void* fc2_bias;    ///< [10]
};

inline constexpr int kHeadGradients = 10 * 128 + 128 + 10;  ///< fc2 weight, fc1 bias, fc2 bias

/// Most thread blocks that head_forward_backward uses.
inline constexpr int kHeadBlocks = 128;

struct HeadMetrics {  ///< Loss and correct predictions of one thread block.
  float loss;
  unsigned int correct;
};

/// hidden * feature_scale (what dropout of the features left out), bias, ReLU, dropout, fc2, softmax cross-entropy and,
/// where dhidden is not null, their gradients: dhidden [count, 128] bf16 with respect to `hidden`; partials
/// [blocks, kHeadGradients] f32; metrics [blocks]. gradient_scale is a factor of gradients only. Returns blocks.
int head_forward_backward(const Images& batch, const HeadWeights& weights, float feature_scale, const Dropout& dropout,
                          const float* hidden, float gradient_scale, void* dhidden, float* partials,
                          HeadMetrics* metrics, cudaStream_t stream);

/// The metrics of a batch of `count` samples, and where they are added and logged (StepLog).
struct MetricsReduction {
  const HeadMetrics* metrics;
  int blocks;
  int count;
  StepRef step;
  MetricSums* sums;
};

/// gradient[i] (bf16, += where accumulate) = sum over rows of partials[row * stride + i], i < count.
struct Reduction {
  const float* partials;
  int rows;
  int stride;
  int count;
  void* gradient;
};
inline constexpr int kMaxReductions = 7;

/// All reductions in one launch; `count` may be 0.
void reduce(const Reduction* reductions, int count, bool accumulate, const MetricsReduction& metrics,
            cudaStream_t stream);

}  // namespace ddptrain::cuda::cnn
