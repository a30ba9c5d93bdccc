#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "models/layers/activations.h"
#include "runtime/comm/tensor_group.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/loss.h"
#include "runtime/ops/reduction.h"
#include "runtime/train/model.h"

namespace ddptrain {

/// The rows of an embedding or an output layer that one rank has: consecutive tokens of the vocabulary. `padded` is
/// their number with padding.
struct VocabularyRows {
  std::int64_t first;
  std::int64_t count;
  std::int64_t padded;
};

/// The output layer: logits and loss. It computes a piece of the rows at a time and never keeps all logits. The forward
/// pass also begins the backward pass, because the logits are there only once.
///
/// Ranks may split the vocabulary. They exchange partial softmax statistics of the logits of their tokens.
class Head {
 public:
  /// `vocabulary` is the number of all tokens, `rows` this rank's tokens; `piece` rows of logits are computed at a
  /// time.
  Head(Device& device, std::int64_t width, std::int64_t vocabulary, const VocabularyRows& rows, std::int64_t piece)
      : device_(device),
        linear_(device.get<LinearOps>()),
        loss_(device.get<LossOps>()),
        reduction_(device.get<ReductionOps>()),
        width_(width),
        vocabulary_(vocabulary),
        rows_(rows),
        piece_(piece) {}

  /// Asks for memory. The logits live as long as their gradient is needed.
  void request(Activations& memory, const Lifetime& forward, const Lifetime& logits) {
    memory.add("logits", device_.dtype(), Shape{piece_, rows_.padded}, logits, logits_);
    if (memory.slices() == 1) return;
    memory.add_statistics("softmax statistics of a slice", {piece_, LossOps::kSoftmaxStatistics}, forward, partial_);
    memory.add_statistics("softmax statistics of all slices", {memory.slices(), piece_, LossOps::kSoftmaxStatistics},
                          forward, all_partial_);
  }
  /// Asks for the memory of next_logits() besides.
  void request_next_logits(Activations& memory, const Lifetime& forward) {
    if (memory.slices() == 1) return;
    memory.add("logits of all slices", device_.dtype(), Shape{memory.slices(), rows_.padded}, forward, all_logits_);
  }
  /// weight [rows.padded, width]; padding is zero.
  void bind(const Tensor& weight, TensorGroup* group) {
    weight_ = weight;
    group_ = group;
  }
  const Tensor& weight() const { return weight_; }

  /// Adds the loss of all predictions of `batch` from `x`, the final norm's output, to `sums`. Unless gradient_scale is
  /// 0, d_x gets the gradient of x, or this rank's term of it; and d_weight, if it has data, the gradient of the
  /// weight.
  void forward(const TokenBatch& batch, const Tensor& x, float gradient_scale, MetricSums* sums, const Tensor& d_x,
               const Tensor& d_weight) {
    const std::int64_t rows = batch.count * batch.source.sequence;
    for (std::int64_t first = 0; first < rows; first += piece_) {
      const std::int64_t count = std::min(piece_, rows - first);
      const Tensor x_piece = piece(x, first, count);
      compute_logits(x_piece);
      add_loss(batch, first, count, gradient_scale, sums);
      if (gradient_scale == 0.0f) continue;
      input_gradient(piece(d_x, first, count));
      if (d_weight) weight_gradient(x_piece, d_weight, first > 0);
    }
  }
  /// The logits [vocabulary] of one row of `x`. All ranks that split the vocabulary get all of them.
  Tensor next_logits(const Tensor& x, std::int64_t row) {
    compute_logits(piece(x, row, 1));
    if (group_ == nullptr) return logits(1).stretch(0, vocabulary_);
    group_->run({TensorGroup::gather(logits(1).stretch(0, rows_.padded), all_logits_.stretch(0, all_logits_.size()))});
    return all_logits_.stretch(0, vocabulary_);
  }
  /// The gradient of the weight from the gradient of the logits that forward() has left, if all rows are one piece.
  void weight_gradient_of_one_piece(const TokenBatch& batch, const Tensor& x, const Tensor& d_weight) {
    weight_gradient(piece(x, 0, batch.count * batch.source.sequence), d_weight, false);
  }
  /// For a head with a weight of its own: dweight (+)= d_weight [rows.padded, width].
  void add_weight_gradient(const Tensor& d_weight, const Tensor& dweight, bool accumulate) {
    const Tensor mine = d_weight.stretch(0, rows_.count * width_);
    reduction_.add_nodes(accumulate ? std::vector{mine, dweight} : std::vector{mine}, dweight,
                         device_.compute_stream());
  }

 private:
  Span span(const char* name) const { return {device_.timeline(), Lane::compute, device_.compute_stream(), name}; }
  Tensor piece(const Tensor& activation, std::int64_t first, std::int64_t count) const {
    Tensor piece = activation.stretch(first * width_, count * width_);
    piece.shape = {count, width_};
    return piece;
  }
  Tensor logits(std::int64_t rows) const { return {logits_.data, logits_.dtype, {rows, rows_.padded}}; }

  void compute_logits(const Tensor& x) {
    if (group_ != nullptr) group_->await_all();  // the norm has exchanged x
    const Span span = this->span("logits");
    linear_.linear(x, weight_, Tensor{}, logits(x.dim(0)));
  }
  /// Unless gradient_scale is 0, the gradient of the logits takes their place.
  void add_loss(const TokenBatch& batch, std::int64_t first, std::int64_t count, float gradient_scale,
                MetricSums* sums) {
    const Span span = this->span("cross-entropy");
    const Tensor logits = this->logits(count);
    const Tensor d_logits = gradient_scale != 0.0f ? logits : Tensor{};
    if (group_ == nullptr) {
      loss_.token_cross_entropy(logits, batch, first, vocabulary_, gradient_scale, d_logits, sums);
      return;
    }
    const Tensor mine = partial_.first(count);
    Tensor all = all_partial_;
    all.shape[1] = count;
    loss_.partial_cross_entropy(logits, batch, first, rows_.count, mine);
    group_->run({TensorGroup::gather(mine, all)});
    loss_.combined_cross_entropy(logits, batch, first, rows_.count, all, gradient_scale, d_logits, sums);
  }
  void input_gradient(const Tensor& d_x) {
    const Span span = this->span("d logits");
    linear_.linear_backward(Tensor{}, weight_, logits(d_x.dim(0)), d_x, Tensor{}, Tensor{}, false);
  }
  void weight_gradient(const Tensor& x, const Tensor& d_weight, bool accumulate) {
    const Span span = this->span("output layer's weight gradient");
    linear_.linear_backward(x, weight_, logits(x.dim(0)), Tensor{}, d_weight, Tensor{}, accumulate);
  }

  Device& device_;
  LinearOps& linear_;
  LossOps& loss_;
  ReductionOps& reduction_;
  std::int64_t width_;
  std::int64_t vocabulary_;
  VocabularyRows rows_;
  std::int64_t piece_;
  TensorGroup* group_ = nullptr;  ///< Null: this rank has the whole vocabulary.
  Tensor weight_;
  Tensor logits_;       ///< [piece, padded vocabulary], and then their gradient.
  Tensor partial_;      ///< [piece, kSoftmaxStatistics]; this and the next only if ranks split the vocabulary.
  Tensor all_partial_;  ///< [slices, piece, kSoftmaxStatistics]
  Tensor all_logits_;   ///< [slices, padded]; only if the model continues texts.
};

}  // namespace ddptrain
