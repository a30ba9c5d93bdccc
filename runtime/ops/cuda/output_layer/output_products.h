#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "runtime/ops/cuda/gemm/finishing_warps.h"
#include "runtime/ops/output_layer.h"

/// The output layer in bf16 by Hopper's warpgroup instructions: softmax statistics in the epilogue of the product that
/// gives the logits, and gradients of the logits made while they are multiplied by the weight.

namespace ddptrain::cuda {

struct MetricPartial;
struct RowGradient;
struct SoftmaxPart;

/// Columns of the input's gradient that the product with gradients of logits computes at most. The others are for
/// cuBLASLt.
inline constexpr std::int64_t kGradientColumns = 256;

/// Whether GPU and tensors suit: bf16, a width that is a multiple of 64, a multiple of 8 columns, and data aligned to
/// 16 bytes.
bool suits_output_products(const OutputRows& rows, const Tensor& d_x = {});

/// What the operations leave for each other. `multiprocessors`: all of the GPU. Bits of the input's gradient depend on
/// it.
class OutputWorkspace {
 public:
  OutputWorkspace(const OutputRows& rows, int multiprocessors, void* memory);

  std::size_t bytes() const { return bytes_; }  ///< Also if `memory` is null.

 private:
  friend class OutputProducts;

  SoftmaxPart* parts_;
  RowGradient* gradients_;
  MetricPartial* metrics_;
  float* sums_;
  std::uint32_t blocks_;  ///< Of rows; there is a partial of metrics for each.
  std::size_t bytes_;
};

/// Queues the operations on a stream. Rows suit.
class OutputProducts {
 public:
  OutputProducts(const OutputRows& rows, const OutputWorkspace& workspace, int multiprocessors, cudaStream_t stream)
      : rows_(rows), workspace_(workspace), multiprocessors_(multiprocessors), stream_(stream) {}

  /// The logits, and softmax statistics of their tiles. At most `clusters` clusters of two thread blocks work on them.
  /// The bits do not depend on it, nor on the warps.
  void logits(FinishingWarps warps, int clusters) const;
  /// Of the rows, from those of the tiles: see LossOps::partial_cross_entropy().
  void statistics(const Tensor& statistics) const;
  /// Adds loss, hits and count of the rows to *sums. Unless gradient_scale is 0, also learns what turns logits into
  /// gradients. From the statistics of tiles, or from those of all slices of the vocabulary.
  void loss(float gradient_scale, MetricSums* sums) const;
  void loss(const Tensor& statistics, float gradient_scale, MetricSums* sums) const;
  /// The logits become their gradients, and the first kGradientColumns columns of d_x are these times the weight.
  void input_gradient(const Tensor& d_x) const;

 private:
  template <class Source>
  void loss_of(const Source& source, float gradient_scale, MetricSums* sums) const;

  const OutputRows& rows_;
  const OutputWorkspace& workspace_;
  int multiprocessors_;
  cudaStream_t stream_;
};

}  // namespace ddptrain::cuda
