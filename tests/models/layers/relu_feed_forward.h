#pragma once

#include "models/layers/sublayer.h"

namespace ddptrain {

/// The example of docs/tutorial/your-own-model.md: two linear layers with a ReLU between them, without FP8.
class ReluFeedForward final : public Sublayer {
 public:
  /// For one of `slices` slices.
  ReluFeedForward(Device& device, std::int64_t width, std::int64_t hidden, std::int64_t slices, float epsilon)
      : Sublayer(device, SublayerShape{{hidden, width}, {width, hidden}}.slice(slices), epsilon),
        relu_(device.get<ActivationOps>()),
        columns_(hidden / slices) {}

  void request(Activations& memory, const std::string& name, const Lifetime& lifetime) {
    norm_.request(memory, name + " norm", lifetime, lifetime);
    memory.add(name + " hidden", columns_, lifetime, hidden_);
  }
  void fit(const BatchShape& shape) override {
    Sublayer::fit(shape);
    shape.fit(hidden_);
  }

 private:
  void inner_forward(const BatchChunk& chunk, const Tensor& branch) override {
    const Tensor hidden = chunk.of(hidden_);
    in_.forward(chunk.of(norm_.output), hidden, false);
    relu_.bias_relu_dropout(flat(hidden), in_.bias(), Dropout{});
    project(hidden, branch);
  }
  void inner_backward(const BatchChunk& chunk, const SublayerGradients& g, const Tensor& d_branch,
                      bool accumulate) override {
    const Tensor d_hidden = chunk.of(inner_gradient(g));
    out_.backward_data(flat(d_branch), d_hidden);
    relu_.bias_relu_backward(flat(chunk.of(hidden_)), d_hidden, 1.0f, in_.dbias(), accumulate);
    in_.backward_data(d_hidden, chunk.of(g.d_norm));
  }
  Tensor inner_output() const override { return hidden_; }
  Tensor inner_gradient(const SublayerGradients& g) const override { return flat(g.d_hidden); }
  Tensor in_dbias() const override { return {}; }  // inner_backward() has computed it

  ActivationOps& relu_;
  std::int64_t columns_;
  Tensor hidden_;  ///< [batch, sequence, columns], after the ReLU
};

}  // namespace ddptrain
