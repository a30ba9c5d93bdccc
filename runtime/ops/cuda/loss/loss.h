#pragma once

#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/loss.h"

namespace ddptrain {

class CudaLoss final : public LossOps, CudaOps {
 public:
  using CudaOps::CudaOps;

  void softmax_cross_entropy(const Tensor& logits, const ImageBatch& batch, float gradient_scale, const Tensor& dlogits,
                             MetricSums* sums) override;
  void token_cross_entropy(const Tensor& logits, const TokenBatch& batch, std::int64_t first_row,
                           std::int64_t vocabulary, float gradient_scale, const Tensor& dlogits,
                           MetricSums* sums) override;
  void part_of_cross_entropy(const Tensor& logits, const TokenBatch& batch, std::int64_t first_row,
                             std::int64_t vocabulary, const Tensor& facts) override;
  void joined_cross_entropy(const Tensor& logits, const TokenBatch& batch, std::int64_t first_row,
                            std::int64_t vocabulary, const Tensor& facts, float gradient_scale, const Tensor& dlogits,
                            MetricSums* sums) override;
};

}  // namespace ddptrain
