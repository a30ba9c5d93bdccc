#pragma once

#include "runtime/ops/family.h"
#include "runtime/ops/token_batch.h"

namespace ddptrain {

/// Losses, with their gradients. If the loss of a prediction is NaN or infinite, its gradient is NaN.
class LossOps : public Family<LossOps> {
 public:
  /// Adds the batch's loss, hits and count to *sums (on the device). Where `dlogits` has data:
  /// dlogits = (softmax(logits) - onehot(label)) * gradient_scale; it may be the same memory as logits.
  virtual void softmax_cross_entropy(const Tensor& logits, const ImageBatch& batch, float gradient_scale,
                                     const Tensor& dlogits, MetricSums* sums) = 0;
  /// Rows first_row, first_row + 1, ... of the batch's [windows * sequence] predictions, one per row of logits
  /// [rows, padded vocabulary]; the first `vocabulary` columns count. Adds loss, hits and count of these
  /// tokens to *sums. Where dlogits has data (it may be logits): (softmax - onehot(target)) * gradient_scale, 0 in the
  /// padding.
  virtual void token_cross_entropy(const Tensor& logits, const TokenBatch& batch, std::int64_t first_row,
                                   std::int64_t vocabulary, float gradient_scale, const Tensor& dlogits,
                                   MetricSums* sums) = 0;

  /// Facts about a row of logits that parts of a vocabulary, each on a rank, exchange: the largest one, the sum of
  /// exp(logit - largest), the target's logit (0 if another part has it), and 1 if the target is the first of
  /// the largest ones here.
  static constexpr std::int64_t kFacts = 4;
  /// facts [rows, kFacts], f32 (f64 for fp64), of the columns of batch.part. Other arguments as token_cross_entropy().
  virtual void part_of_cross_entropy(const Tensor& logits, const TokenBatch& batch, std::int64_t first_row,
                                     std::int64_t vocabulary, const Tensor& facts) = 0;
  /// token_cross_entropy() over all parts. `facts` [parts, rows, kFacts]: of all. Every rank adds the same to *sums.
  virtual void joined_cross_entropy(const Tensor& logits, const TokenBatch& batch, std::int64_t first_row,
                                    std::int64_t vocabulary, const Tensor& facts, float gradient_scale,
                                    const Tensor& dlogits, MetricSums* sums) = 0;

  static std::unique_ptr<LossOps> on_cpu(Device& device);
  static std::unique_ptr<LossOps> on_cuda(Device& device);
};

}  // namespace ddptrain
