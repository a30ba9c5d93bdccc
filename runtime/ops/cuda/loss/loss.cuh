#pragma once

#include <cstdint>

#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/cuda/loss/predictions.cuh"
#include "runtime/ops/loss.h"

/// Code that the losses share.

namespace ddptrain {

namespace cuda {

/// Adds `count` partials, in a fixed order, and `rows` samples to *sums, and logs them (StepLog).
void add_metric_partials(const MetricPartial* partials, std::uint32_t count, std::int64_t rows, StepRef step,
                         MetricSums* sums, cudaStream_t stream);

}  // namespace cuda

class CudaLoss final : public LossOps, CudaOps {
 public:
  using CudaOps::CudaOps;

  void softmax_cross_entropy(const Tensor& logits, const ImageBatch& batch, float gradient_scale, const Tensor& dlogits,
                             MetricSums* sums) override;
  void token_cross_entropy(const Tensor& logits, const TokenBatch& batch, std::int64_t first_row,
                           std::int64_t vocabulary, float gradient_scale, const Tensor& dlogits,
                           MetricSums* sums) override;
  void partial_cross_entropy(const Tensor& logits, const TokenBatch& batch, std::int64_t first_row,
                             std::int64_t vocabulary, const Tensor& statistics) override;
  void combined_cross_entropy(const Tensor& logits, const TokenBatch& batch, std::int64_t first_row,
                              std::int64_t vocabulary, const Tensor& statistics, float gradient_scale,
                              const Tensor& dlogits, MetricSums* sums) override;
  void likeliest_token(const Tensor& logits, LikeliestToken* likeliest) override;
};

}  // namespace ddptrain
