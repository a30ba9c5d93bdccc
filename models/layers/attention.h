#pragma once

#include "models/layers/sublayer.h"
#include "runtime/ops/attention.h"

namespace ddptrain {

/// Causal self-attention: `in` computes queries, keys and values; `out` is the projection.
class Attention final : public Sublayer {
 public:
  /// For one of `parts` parts of the heads.
  Attention(Device& device, std::int64_t width, std::int64_t heads, std::int64_t parts, float epsilon)
      : Sublayer(device, shape(width).part(parts), epsilon),
        attention_(device.get<AttentionOps>()),
        quantisation_(device.get<QuantisationOps>()),
        width_(width / parts),
        heads_(heads / parts) {}
  static SublayerShape shape(std::int64_t width) { return {{3 * width, width}, {width, width}, 3}; }

  /// Allocates all activations but the norm's input. Pass `fp8` if prepare_fp8() follows.
  void allocate(Activations& memory, bool fp8 = false) {
    norm_.allocate(memory);
    qkv_ = memory.activation(3 * width_);
    attended_ = memory.activation(width_);
    statistics_ = memory.statistics({memory.batch(), heads_, memory.sequence()});
    if (fp8) attended_fp8_ = memory.activation(DType::e4m3, width_);
  }

  void bind_scales(Fp8Scales& scales, std::size_t first) override {
    Sublayer::bind_scales(scales, first);
    attended_fp8_.scale = out_.input_scale();
  }

  void fit(const BatchShape& shape) override {
    Sublayer::fit(shape);
    shape.fit(qkv_);
    shape.fit(attended_);
    if (attended_fp8_) shape.fit(attended_fp8_);
    statistics_.shape = {shape.batch, heads_, shape.sequence};
  }

  void forward(const Tensor& branch) override {
    {
      const Span span = part("qkv");
      in_.forward(norm_.output, qkv_);
    }
    {
      const Span span = part("attention");
      attention_.attention(qkv_, heads_, attended_, statistics_);
    }
    const Span span = part("attention projection");
    if (out_.fp8()) quantisation_.to_fp8(flat(attended_), flat(attended_fp8_), Tensor{}, false);
    project(inner_output(), branch);
  }

 private:
  void inner_backward(const SublayerGradients& g, const Tensor& dbranch, bool accumulate) override {
    Tensor dattended = g.dnorm;  // in the memory of what comes last
    dattended.shape = attended_.shape;
    {
      const Span span = part("d attention projection");
      out_.backward_data(out_.convert(dbranch, g.dbranch_fp8, dbias_from_branch(), accumulate), dattended);
    }
    {
      const Span span = part("d attention");
      attention_.attention_backward(qkv_, heads_, attended_, statistics_, dattended, g.dinner);
    }
    const Span span = part("d qkv");
    in_.backward_data(in_.convert(g.dinner, g.dinner_fp8, in_.dbias(), accumulate), g.dnorm);
  }
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
