#include "models/layers/feed_forward.h"

namespace ddptrain {

FeedForward::FeedForward(Device& device, std::int64_t width, std::int64_t feed_forward, std::int64_t parts,
                         float epsilon, bool gelu_again)
    : Sublayer(device, shape(width, feed_forward).part(parts), epsilon),
      linear_(device.get<LinearOps>()),
      feed_forward_(feed_forward / parts),
      gelu_again_(gelu_again) {}

void FeedForward::allocate(Activations& memory) {
  norm_.allocate(memory);
  pre_ = memory.activation(feed_forward_);
}

void FeedForward::bind_scales(Fp8Scales& scales, std::size_t first) {
  Sublayer::bind_scales(scales, first);
  hidden_.scale = out_.input_scale();
}

void FeedForward::set_fp8(bool fp8) {
  Sublayer::set_fp8(fp8);
  hidden_.dtype = norm_.output.dtype;
}

void FeedForward::fit(const BatchShape& shape) {
  Sublayer::fit(shape);
  shape.fit(pre_);
  shape.fit(hidden_);
}

void FeedForward::expand() {
  const Span span = part("expansion and GELU");
  in_.forward_gelu(norm_.output, pre_, hidden_, gelu_again_);
}

void FeedForward::forward(const Tensor& branch) {
  expand();
  const Span span = part("mlp projection");
  project(hidden_, branch);
}

void FeedForward::inner_backward(const SublayerGradients& g, const Tensor& dbranch, bool accumulate) {
  const Tensor dpre = inner_gradient(g);
  {
    const Span span = part("d mlp projection and GELU");
    const Tensor dy = out_.convert(dbranch, g.dbranch_fp8, dbias_from_branch(), accumulate);
    out_.backward_gelu(dy, pre_, dpre, in_.dbias(), accumulate);
  }
  const Span span = part("d expansion");
  in_.backward_data(dpre, g.dnorm);
}

}  // namespace ddptrain
