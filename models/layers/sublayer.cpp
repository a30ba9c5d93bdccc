#include "models/layers/sublayer.h"

#include "runtime/comm/tensor_group.h"

namespace ddptrain {

void SublayerGradients::fit(const BatchShape& shape) {
  for (Tensor* tensor : {&dout, &dbranch, &din, &dinner, &dnorm, &dbranch_fp8, &dinner_fp8}) {
    if (*tensor) shape.fit(*tensor);
  }
}

void Sublayer::bind(const ModelTensors& tensors, std::size_t first) {
  first_ = first;
  group_ = tensors.group;
  out_.bind(tensors, first);
  in_.bind(tensors, first + Linear::kParameters);
  norm_.bind(tensors, first + 2 * Linear::kParameters);
}

void Sublayer::prepare_fp8(Activations& memory) {
  in_.prepare_fp8(memory);
  out_.prepare_fp8(memory);
}

void Sublayer::bind_scales(Fp8Scales& scales, std::size_t first) {
  in_.bind_scales(scales, first);
  out_.bind_scales(scales, first + Linear::kScaleFormats.size());
  norm_.output.scale = in_.input_scale();
}

void Sublayer::set_fp8(bool fp8) {
  in_.set_fp8(fp8);
  out_.set_fp8(fp8);
  norm_.output.dtype = fp8 ? DType::e4m3 : device_.dtype();
}

void Sublayer::convert_weights() {
  in_.convert_weight();
  out_.convert_weight();
}

void Sublayer::project(const Tensor& x, const Tensor& branch) {
  out_.forward(x, branch, group_ == nullptr || group_->is_first());
  if (group_ != nullptr) group_->run({group_->sum_part(branch)});
}

void Sublayer::add(const Tensor& branch, Norm& next) {
  const Span span = part("add and norm");
  next.forward(norm_.input, branch, dropout_);
}

void Sublayer::backward_data(const SublayerGradients& g, const Tensor& before_dbias, bool accumulate) {
  backward_part(g, accumulate);
  const Span span = part("d norm");
  norm_.backward(g.dnorm, g.dout, g.din, before_dbias, accumulate);
}

void Sublayer::backward_weights(const SublayerGradients& g, bool accumulate, const Model::Ready& ready) {
  weight_gradient_of_out(g, accumulate);
  for (std::size_t i = 0; i < Linear::kParameters; ++i) ready(first_ + i);
  weight_gradient_of_in(g, accumulate);
  for (std::size_t i = Linear::kParameters; i < kParameters; ++i) ready(first_ + i);
}

void Sublayer::backward(const SublayerGradients& g, const Tensor& before_dbias, bool accumulate,
                        const Model::Ready& ready) {
  if (group_ == nullptr) {
    backward_data(g, before_dbias, accumulate);
    backward_weights(g, accumulate, ready);
    return;
  }
  backward_part(g, accumulate);
  norm_.backward(
      g.dnorm, g.dout, g.din, Tensor{}, accumulate, [&] { weight_gradient_of_out(g, accumulate); },
      [&] { weight_gradient_of_in(g, accumulate); });
  for (std::size_t i = 0; i < kParameters; ++i) ready(first_ + i);
}

void Sublayer::backward_part(const SublayerGradients& g, bool accumulate) {
  if (dropout_.rate > 0.0f) activation_.dropout(g.dout, dropout_, g.dbranch);
  inner_backward(g, dbranch(g), accumulate);
}

void Sublayer::weight_gradient_of_out(const SublayerGradients& g, bool accumulate) {
  const Span span = part("weight gradient");
  out_.backward_weight(inner_output(), out_.gradient(dbranch(g), g.dbranch_fp8), dbias_from_branch(), accumulate);
}

void Sublayer::weight_gradient_of_in(const SublayerGradients& g, bool accumulate) {
  const Span span = part("weight gradient");
  in_.backward_weight(norm_.output, inner_gradient(g), in_dbias(), accumulate);
}

}  // namespace ddptrain
