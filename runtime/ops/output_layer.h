#pragma once

#include <cstdint>

#include "runtime/ops/family.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/loss.h"

namespace ddptrain {

/// Rows of the output layer of a language model.
struct OutputRows {
  Tensor x;          ///< [rows, width]
  Tensor weight;     ///< [columns, width]: the tokens of this rank, and padding.
  Tensor logits;     ///< [rows, columns]: memory of the operation.
  TokenBatch batch;  ///< This and the next two: see LossOps::token_cross_entropy().
  std::int64_t first_row = 0;
  std::int64_t vocabulary = 0;
};

/// An output layer and its loss. `logits` are written first and replaced by their gradients, so they exist only once.
/// This class runs one operation of LinearOps and LossOps after the other.
class OutputLayerOps : public Family<OutputLayerOps> {
 public:
  explicit OutputLayerOps(Device& device);

  /// logits = x weight^T, and LossOps::token_cross_entropy() of them. Unless gradient_scale is 0, their gradient takes
  /// their place, and d_x [rows, width] = this gradient times weight.
  virtual void loss(const OutputRows& rows, float gradient_scale, const Tensor& d_x, MetricSums* sums);

  /// loss() in two halves, for ranks that split the vocabulary. Between them the ranks exchange their statistics.
  /// logits = x weight^T, and LossOps::partial_cross_entropy() of them.
  virtual void partial_loss(const OutputRows& rows, const Tensor& statistics);
  /// Takes the logits of partial_loss(), and the statistics of all ranks [slices, rows, LossOps::kSoftmaxStatistics].
  /// LossOps::combined_cross_entropy() of them, and otherwise as loss(). d_x gets this rank's term.
  virtual void combined_loss(const OutputRows& rows, const Tensor& statistics, float gradient_scale, const Tensor& d_x,
                             MetricSums* sums);

  static std::unique_ptr<OutputLayerOps> on_cpu(Device& device);
  static std::unique_ptr<OutputLayerOps> on_cuda(Device& device);

 protected:
  void multiply(const OutputRows& rows);
  void input_gradient(const OutputRows& rows, const Tensor& d_x);

  Device& owner_;
  LinearOps& linear_;
  LossOps& loss_;
};

}  // namespace ddptrain
