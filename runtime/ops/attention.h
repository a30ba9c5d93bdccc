#pragma once

#include "runtime/ops/family.h"

namespace ddptrain {

/// Self-attention.
class AttentionOps : public Family<AttentionOps> {
 public:
  /// Causal self-attention: out [batch, sequence, width] = softmax(q k^T / sqrt(width / heads)) v per head, with
  /// qkv [batch, sequence, 3 width] = q | k | v, each [heads, width / heads]. statistics [batch, heads, sequence]: for
  /// the backward pass alone.
  virtual void attention(const Tensor& qkv, std::int64_t heads, const Tensor& out, const Tensor& statistics) = 0;
  virtual void attention_backward(const Tensor& qkv, std::int64_t heads, const Tensor& out, const Tensor& statistics,
                                  const Tensor& d_output, const Tensor& dqkv) = 0;

  static std::unique_ptr<AttentionOps> on_cpu(Device& device);
  static std::unique_ptr<AttentionOps> on_cuda(Device& device);
};

}  // namespace ddptrain
