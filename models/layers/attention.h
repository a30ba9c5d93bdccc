#pragma once

#include "models/layers/sublayer.h"
#include "runtime/ops/attention.h"

namespace ddptrain {

/// Causal self-attention: `in` computes queries, keys and values; `out` is the projection.
class Attention final : public Sublayer {
 public:
  /// For one of `parts` parts of the heads.
  Attention(Device& device, std::int64_t width, std::int64_t heads, std::int64_t parts, float epsilon);
  static SublayerShape shape(std::int64_t width) { return {{3 * width, width}, {width, width}, 3}; }

  /// Allocates all activations but the norm's input. Pass `fp8` if prepare_fp8() follows.
  void allocate(Activations& memory, bool fp8 = false);
  void bind_scales(Fp8Scales& scales, std::size_t first) override;
  void fit(const BatchShape& shape) override;
  void forward(const Tensor& branch) override;

 private:
  void inner_backward(const SublayerGradients& g, const Tensor& dbranch, bool accumulate) override;
  Tensor inner_output() const override { return out_.fp8() ? attended_fp8_ : attended_; }
  Tensor inner_gradient(const SublayerGradients& g) const override { return in_.gradient(g.dinner, g.dinner_fp8); }
  Tensor in_dbias() const override { return in_.dbias(); }

  AttentionOps& attention_;
  QuantisationOps& quantisation_;
  std::int64_t width_;  ///< The width of this part's heads together.
  std::int64_t heads_;
  Tensor qkv_;           ///< [batch, sequence, 3 width]
  Tensor attended_;      ///< [batch, sequence, width]
  Tensor attended_fp8_;  ///< A copy. Unused without FP8.
  Tensor statistics_;    ///< [batch, heads, sequence]
};

}  // namespace ddptrain
