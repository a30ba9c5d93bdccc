#pragma once

#include "runtime/ops/family.h"
#include "runtime/ops/image_batch.h"
#include "runtime/ops/token_batch.h"

namespace ddptrain {

/// See LossOps::likeliest_token().
struct LikeliestToken {
  std::uint32_t token = 0;
  std::uint32_t all_finite = 0;  ///< 1; 0 if a logit is NaN or infinite, and `token` means nothing.
};

/// Losses, with their gradients, and the choice of a token. If the loss of a prediction is NaN or infinite, its
/// gradient is NaN.
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

  /// Numbers of partial softmax statistics per row of logits. Ranks that split a vocabulary exchange them: the largest
  /// logit, the sum of exp(logit - largest), the target's logit (0 if another slice has it), and 1 if the target is the
  /// first of the largest logits here.
  static constexpr std::int64_t kSoftmaxStatistics = 4;
  /// statistics [rows, kSoftmaxStatistics], f32 (f64 for fp64), of the columns of batch.vocabulary_slice. Other
  /// arguments as token_cross_entropy().
  virtual void partial_cross_entropy(const Tensor& logits, const TokenBatch& batch, std::int64_t first_row,
                                     std::int64_t vocabulary, const Tensor& statistics) = 0;
  /// token_cross_entropy() over all slices. `statistics` [slices, rows, kSoftmaxStatistics]: of all. Every rank adds
  /// the same to *sums.
  virtual void combined_cross_entropy(const Tensor& logits, const TokenBatch& batch, std::int64_t first_row,
                                      std::int64_t vocabulary, const Tensor& statistics, float gradient_scale,
                                      const Tensor& dlogits, MetricSums* sums) = 0;

  /// *likeliest (on the device) = the token of the largest of `logits` [vocabulary]; of equal ones, the first.
  virtual void likeliest_token(const Tensor& logits, LikeliestToken* likeliest) = 0;

  static std::unique_ptr<LossOps> on_cpu(Device& device);
  static std::unique_ptr<LossOps> on_cuda(Device& device);
};

}  // namespace ddptrain
