#pragma once

#include <cstdint>

#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/loss.h"

/// Code that the losses share.

namespace ddptrain {

namespace cuda {

/// Loss and hits of one row, or of the rows that a block or a warp took.
struct MetricPartial {
  double loss;
  std::uint32_t correct;
};

/// Adds `count` partials, in a fixed order, and `rows` samples to *sums, and logs them (StepLog).
void add_metric_partials(const MetricPartial* partials, std::uint32_t count, std::int64_t rows, StepRef step,
                         MetricSums* sums, cudaStream_t stream);

/// Targets of rows of logits: the tokens that follow the tokens of a batch, from its prediction `first` on.
struct Predictions {
  TokenBatch batch;
  std::uint32_t first;

  __device__ __forceinline__ std::uint32_t target(std::uint32_t row) const {
    const std::uint32_t sequence = batch.source.sequence;
    const std::uint32_t window = BatchRows(batch.order, batch.step)[(first + row) / sequence];
    return batch.source.token(window, (first + row) % sequence + 1);
  }
};

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
