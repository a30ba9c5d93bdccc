#pragma once

#include "models/layers/sublayer.h"

namespace ddptrain {

/// Two linear layers with a GELU between them.
class FeedForward final : public Sublayer {
 public:
  /// For one of `parts` parts. `gelu_again`: restore_gelu() may be called.
  FeedForward(Device& device, std::int64_t width, std::int64_t feed_forward, std::int64_t parts, float epsilon,
              bool gelu_again)
      : Sublayer(device, shape(width, feed_forward).part(parts), epsilon),
        linear_(device.get<LinearOps>()),
        feed_forward_(feed_forward / parts),
        gelu_again_(gelu_again) {}
  static SublayerShape shape(std::int64_t width, std::int64_t feed_forward) {
    return {{feed_forward, width}, {width, feed_forward}};
  }

  /// Allocates all activations but the norm's input and the GELU's output.
  void allocate(Activations& memory) {
    norm_.allocate(memory);
    pre_ = memory.activation(feed_forward_);
  }
  /// Allocates the GELU's output.
  void allocate_hidden(Activations& memory) { hidden_ = memory.activation(feed_forward_); }
  void share_hidden(const FeedForward& other) { hidden_ = other.hidden_; }

  void bind_scales(Fp8Scales& scales, std::size_t first) override {
    Sublayer::bind_scales(scales, first);
    hidden_.scale = out_.input_scale();
  }
  void set_fp8(bool fp8) override {
    Sublayer::set_fp8(fp8);
    hidden_.dtype = norm_.output.dtype;
  }
  void fit(const BatchShape& shape) override {
    Sublayer::fit(shape);
    shape.fit(pre_);
    shape.fit(hidden_);
  }

  void forward(const Tensor& branch) override {
    expand();
    const Span span = part("mlp projection");
    project(hidden_, branch);
  }
  /// Runs forward() up to the GELU's output.
  void expand() {
    const Span span = part("expansion and GELU");
    in_.forward_gelu(norm_.output, pre_, hidden_, gelu_again_);
  }
  /// Computes the GELU's output again from its input, with the same bits.
  void restore_gelu() { linear_.gelu(flat(pre_), flat(hidden_)); }

 private:
  void inner_backward(const SublayerGradients& g, const Tensor& dbranch, bool accumulate) override {
    const Tensor dpre = inner_gradient(g);
    {
      const Span span = part("d mlp projection and GELU");
      const Tensor dy = out_.convert(dbranch, g.dbranch_fp8, dbias_from_branch(), accumulate);
      out_.backward_gelu(dy, pre_, dpre, in_.dbias(), accumulate);
    }
    const Span span = part("d expansion");
    in_.backward_data(dpre, g.dnorm);
  }
  Tensor inner_output() const override { return hidden_; }
  Tensor inner_gradient(const SublayerGradients& g) const override { return in_.gradient(g.dinner, g.dinner); }
  Tensor in_dbias() const override { return {}; }  // inner_backward() has computed it

  LinearOps& linear_;
  std::int64_t feed_forward_;  ///< The hidden width of this part.
  bool gelu_again_;
  Tensor pre_, hidden_;  ///< [batch, sequence, feed-forward], before and after the GELU
};

}  // namespace ddptrain
