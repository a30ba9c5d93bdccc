#pragma once

#include "runtime/ops/family.h"
#include "runtime/ops/token_batch.h"

namespace ddptrain {

/// Embeddings of tokens and their positions.
class EmbeddingOps : public Family<EmbeddingOps> {
 public:
  /// out [batch, sequence, width] = dropout(token_embedding [vocabulary, width] + position_embedding [>= sequence,
  /// width]), the positions from batch.position(0) on. Dropout counts features over [sequence, width]; a sample is a
  /// window. Zero for tokens that another slice of the vocabulary has. If position_embedding has no data, only tokens
  /// are embedded.
  virtual void embed_tokens(const TokenBatch& batch, const Tensor& token_embedding, const Tensor& position_embedding,
                            const Dropout& dropout, const Tensor& out) = 0;
  /// dtoken (+)= head + the sum of d_output over the places of each token; dposition (+)= the sum of d_output over the
  /// batch. `head` [>= vocabulary, width], f32 (f64 for fp64): what the tied output layer contributes. Tokens of other
  /// slices of the vocabulary count for dposition alone. `head` and dposition may have no data.
  virtual void embed_tokens_backward(const TokenBatch& batch, const Dropout& dropout, const Tensor& d_output,
                                     const Tensor& head, const Tensor& dtoken, const Tensor& dposition,
                                     bool accumulate) = 0;

  static std::unique_ptr<EmbeddingOps> on_cpu(Device& device);
  static std::unique_ptr<EmbeddingOps> on_cuda(Device& device);
};

}  // namespace ddptrain
