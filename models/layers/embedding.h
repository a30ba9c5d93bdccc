#pragma once

#include <vector>

#include "models/layers/activations.h"
#include "runtime/comm/tensor_group.h"
#include "runtime/ops/embedding.h"
#include "runtime/train/model.h"

namespace ddptrain {

/// The embedding of tokens and, if it has learned positions, of their positions.
///
/// Ranks may split the vocabulary: each embeds its tokens, and gets its slice of the rows of the sum.
class Embedding {
 public:
  Embedding(Device& device, bool learns_positions)
      : device_(device), embedding_(device.get<EmbeddingOps>()), learns_positions_(learns_positions) {}

  std::size_t parameters() const { return learns_positions_ ? 2 : 1; }
  /// `first` is the index of the token embedding among the model's parameters. The position embedding follows.
  void bind(const ModelTensors& tensors, std::size_t first) {
    group_ = tensors.group;
    tokens_ = tensors.weights.at(first);
    d_tokens_ = tensors.gradients.at(first);
    if (!learns_positions_) return;
    positions_ = tensors.weights.at(first + 1);
    d_positions_ = tensors.gradients.at(first + 1);
  }
  const Tensor& tokens() const { return tokens_; }

  /// stream = the embedded batch, or this rank's rows of its chunks. Ranks that split the vocabulary use `branch` as
  /// well.
  void forward(const TokenBatch& batch, const Dropout& dropout, const std::vector<BatchChunk>& chunks,
               const Tensor& branch, const Tensor& stream) {
    const Tensor& mine = group_ != nullptr ? branch : stream;
    embedding_.embed_tokens(batch, tokens_, positions_, dropout, mine);
    if (group_ == nullptr) return;
    std::vector<TensorGroup::Collective> sums;  // of one value and zeros
    for (const BatchChunk& chunk : chunks) sums.push_back(TensorGroup::sum_shard(chunk.of(mine), chunk.of(stream)));
    group_->run(sums);
  }
  /// `d_head`: the tied output layer's gradient of the token embedding; without data if the head is not tied.
  void backward(const TokenBatch& batch, const Dropout& dropout, const Tensor& d_stream, const Tensor& d_head,
                bool accumulate) {
    const std::int64_t sequence = batch.source.sequence;
    const Tensor d_positions = learns_positions_ ? d_positions_.first(sequence) : Tensor{};
    embedding_.embed_tokens_backward(batch, dropout, d_stream, d_head, d_tokens_, d_positions, accumulate);
    if (accumulate || !learns_positions_ || sequence == d_positions_.dim(0)) return;
    const std::size_t used = d_positions.bytes();
    device_.zero(d_positions_.as<char>() + used, d_positions_.bytes() - used, device_.compute_stream());
  }

 private:
  Device& device_;
  EmbeddingOps& embedding_;
  bool learns_positions_;
  TensorGroup* group_ = nullptr;  ///< Null: this rank has the whole vocabulary.
  Tensor tokens_;
  Tensor d_tokens_;
  Tensor positions_;  ///< This and the next only with learned positions.
  Tensor d_positions_;
};

}  // namespace ddptrain
