#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/backend/backend.h"
#include "runtime/backend/step.h"

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

/// features [count, 9216] = dropout(max-pool(ReLU(conv2(ReLU(conv1(pixels / 255)))))).
/// winners [count, 1152] u32: for every eight channels of a pooled pixel eight nibbles, one-hot in the position
/// (2 dy + dx) that receives the gradient, 0 where the output is 0.
void conv_forward(const Images& batch, const ConvWeights& weights, const Dropout& dropout, void* features,
                  std::uint32_t* winners, int multiprocessors, cudaStream_t stream);

/// Gradients of the four convolution parameters summed over the images of each thread block:
/// partials [blocks, kConvGradients] f32. dfeatures [count, 9216] is the gradient after dropout. Returns blocks.
int conv_backward(const Images& batch, const ConvWeights& weights, float dropout_scale, const void* dfeatures,
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

struct HeadMetrics {  ///< Of one thread block.
  float loss;
  unsigned int correct;
};

/// Bias, ReLU, dropout, fc2, softmax cross-entropy and, where dhidden is not null, their gradients:
/// dhidden [count, 128] bf16 with respect to fc1's output before bias; partials [blocks, kHeadGradients] f32;
/// metrics [blocks]. Loss of each sample is scaled by gradient_scale in gradients only. Returns blocks.
int head_forward_backward(const Images& batch, const HeadWeights& weights, const Dropout& dropout, const float* hidden,
                          float gradient_scale, void* dhidden, float* partials, HeadMetrics* metrics,
                          cudaStream_t stream);

/// *sums += metrics of all blocks, and count samples.
void sum_metrics(const HeadMetrics* metrics, int blocks, int count, MetricSums* sums, cudaStream_t stream);

/// gradient[i] (bf16, += where accumulate) = sum over rows of partials[row * stride + i], i < count.
struct Reduction {
  const float* partials;
  int rows;
  int stride;
  int count;
  void* gradient;
};
inline constexpr int kMaxReductions = 7;

/// All reductions in one launch.
void reduce_gradients(const Reduction* reductions, int count, bool accumulate, cudaStream_t stream);

}  // namespace ddptrain::cuda::cnn
