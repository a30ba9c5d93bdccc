#include "models/gpt/gpt_block.h"

#include <cmath>

#include "runtime/core/error.h"

namespace ddptrain {

namespace {

/// Places among the block's parameters.
enum Parameter : std::size_t {
  mlp_projection_weight,
  mlp_projection_bias,
  expansion_weight,
  expansion_bias,
  norm2_weight,
  norm2_bias,
  attention_projection_weight,
  attention_projection_bias,
  qkv_weight,
  qkv_bias,
  norm1_weight,
  norm1_bias,
  kEnd
};
static_assert(kEnd == GptBlock::kParameters);

/// What the linear layers of a half give: the residual's gradient, through the dropout where there is some.
const Tensor& through(const Dropout& dropout, const Tensor& dresidual, const Tensor& dropped) {
  return dropout.rate > 0.0f ? dropped : dresidual;
}

/// The bias gradient of a layer that adds to the residual, for those who sum the residual's gradient over the rows and
/// for those who sum what is behind the dropout.
Tensor if_kept(const Dropout& dropout, const Tensor& dbias) { return dropout.rate > 0.0f ? Tensor{} : dbias; }
Tensor if_dropped(const Dropout& dropout, const Tensor& dbias) { return dropout.rate > 0.0f ? dbias : Tensor{}; }

}  // namespace

Tensor flat(const Tensor& activation) {
  Tensor matrix = activation;
  matrix.shape = {activation.size() / activation.shape.back(), activation.shape.back()};
  return matrix;
}

void GptBlock::append_parameters(const GptShape& shape, std::int64_t layer, std::vector<ParameterSpec>& specs) {
  const std::int64_t width = shape.width;
  const InitialValue normal = InitialValue::normal(0.02f);
  const InitialValue residual = InitialValue::normal(0.02f / std::sqrt(2.0f * static_cast<float>(shape.layers)));
  const auto add_layer = [&](const char* name, const Shape& weight, const InitialValue& initial) {
    specs.push_back({fmt::format("h.{}.{}.weight", layer, name), weight, initial, true});
    specs.push_back({fmt::format("h.{}.{}.bias", layer, name), {weight[0]}, InitialValue::constant(0.0f), false});
  };
  const auto add_norm = [&](const char* name) {
    specs.push_back({fmt::format("h.{}.{}.weight", layer, name), {width}, InitialValue::constant(1.0f), false});
    specs.push_back({fmt::format("h.{}.{}.bias", layer, name), {width}, InitialValue::constant(0.0f), false});
  };
  add_layer("mlp.c_proj", {width, shape.feed_forward}, residual);
  add_layer("mlp.c_fc", {shape.feed_forward, width}, normal);
  add_norm("ln_2");
  add_layer("attn.c_proj", {width, width}, residual);
  add_layer("attn.c_attn", {3 * width, width}, normal);
  add_norm("ln_1");
}

void GptBlock::bind(const std::vector<Tensor>& weights, const std::vector<Tensor>& gradients, std::size_t first) {
  first_ = first;
  const auto bind_layer = [&](auto& layer, std::size_t weight) {
    layer.weight = weights.at(first + weight);
    layer.bias = weights.at(first + weight + 1);
    layer.dweight = gradients.at(first + weight);
    layer.dbias = gradients.at(first + weight + 1);
  };
  bind_layer(mlp_projection_, mlp_projection_weight);
  bind_layer(expansion_, expansion_weight);
  bind_layer(norm2_, norm2_weight);
  bind_layer(attention_projection_, attention_projection_weight);
  bind_layer(qkv_, qkv_weight);
  bind_layer(norm1_, norm1_weight);
}

void GptBlock::prepare_fp8(const std::function<Tensor(const Shape&)>& allocate) {
  qkv_.weight_fp8 = allocate({3 * shape_.width, shape_.width});
  attention_projection_.weight_fp8 = allocate({shape_.width, shape_.width});
  expansion_.weight_fp8 = allocate({shape_.feed_forward, shape_.width});
  mlp_projection_.weight_fp8 = allocate({shape_.width, shape_.feed_forward});
}

/// Of the weight, the gradient of the output and the input of each linear layer.
std::vector<DType> GptBlock::scale_formats() {
  constexpr std::size_t kLayers = 4, kScales = 3;
  std::vector<DType> formats(kLayers * kScales, DType::e4m3);
  for (std::size_t layer = 0; layer < kLayers; ++layer) formats[layer * kScales + 1] = DType::e5m2;
  return formats;
}

void GptBlock::bind_scales(Fp8Scales& scales, std::size_t first) {
  const auto bind_layer = [&](GptLinear& layer, Tensor& input) {
    layer.weight_fp8.scale = scales.at(first++);
    layer.gradient_scale = scales.at(first++);
    input.scale = scales.at(first++);
  };
  bind_layer(qkv_, norm1_.output);
  bind_layer(attention_projection_, activations_.attended_fp8);
  bind_layer(expansion_, norm2_.output);
  bind_layer(mlp_projection_, activations_.hidden);
}

void GptBlock::set_fp8(bool fp8) {
  fp8_ = fp8;
  for (Tensor* input : {&norm1_.output, &norm2_.output, &activations_.hidden}) {
    input->dtype = fp8 ? DType::e4m3 : device_.dtype();
  }
}

void GptBlock::convert_weights() {
  if (!fp8_) return;
  const Span span = part("weights to FP8");
  for (const GptLinear* layer : {&qkv_, &attention_projection_, &expansion_, &mlp_projection_}) {
    quantisation_.to_fp8(layer->weight, layer->weight_fp8, Tensor{}, false);
  }
}

Tensor GptBlock::gradient_of(const GptLinear& layer, const Tensor& dy, const Tensor& fp8) const {
  Tensor gradient = flat(fp8_ ? fp8 : dy);
  gradient.scale = layer.gradient_scale;
  return gradient;
}

Tensor GptBlock::convert_gradient(const GptLinear& layer, const Tensor& dy, const Tensor& fp8, const Tensor& dbias,
                                  bool accumulate) {
  Tensor gradient = gradient_of(layer, dy, fp8);
  if (fp8_) quantisation_.to_fp8(flat(dy), gradient, dbias, accumulate);
  return gradient;
}

void GptBlock::forward(const Tensor& branch) {
  convert_weights();
  attend(branch);
  expand();
  const Span span = part("mlp projection");
  linear_.linear(flat(activations_.hidden), weight_of(mlp_projection_), mlp_projection_.bias, flat(branch));
}

void GptBlock::add_and_norm(const Tensor& branch, const GptNorm& next) {
  const Span span = part("add and norm");
  norm_.add_layer_norm(norm2_.input, branch, mlp_dropout_, next.weight, next.bias, epsilon(), next.input, next.output,
                       next.statistics);
}

void GptBlock::restore(const Tensor& branch) {
  if (recompute_ == Recompute::gelu) linear_.gelu(flat(activations_.pre), flat(activations_.hidden));
  if (recompute_ != Recompute::block) return;
  norm_.layer_norm(norm1_.input, norm1_.weight, norm1_.bias, epsilon(), norm1_.output, norm1_.statistics);
  attend(branch);
  expand();
}

/// From norm1's output to norm2's.
void GptBlock::attend(const Tensor& branch) {
  const GptBlockActivations& a = activations_;
  {
    const Span span = part("qkv");
    linear_.linear(flat(norm1_.output), weight_of(qkv_), qkv_.bias, flat(a.qkv));
  }
  {
    const Span span = part("attention");
    attention_.attention(a.qkv, shape_.heads, a.attended, a.attention_statistics);
  }
  {
    const Span span = part("attention projection");
    if (fp8_) quantisation_.to_fp8(flat(a.attended), flat(a.attended_fp8), Tensor{}, false);
    linear_.linear(flat(input_of(a.attended, a.attended_fp8)), weight_of(attention_projection_),
                   attention_projection_.bias, flat(branch));
  }
  const Span span = part("add and norm");
  norm_.add_layer_norm(norm1_.input, branch, attention_dropout_, norm2_.weight, norm2_.bias, epsilon(), norm2_.input,
                       norm2_.output, norm2_.statistics);
}

void GptBlock::expand() {
  const Span span = part("expansion and GELU");
  linear_.linear_gelu(flat(norm2_.output), weight_of(expansion_), expansion_.bias, flat(activations_.pre),
                      flat(activations_.hidden), recompute_ == Recompute::gelu);
}

void GptBlock::mlp_backward_data(const GptScratch& scratch, bool accumulate) {
  if (mlp_dropout_.rate > 0.0f) activation_.dropout(scratch.dout, mlp_dropout_, scratch.mlp_branch);
  const Tensor& dbranch = through(mlp_dropout_, scratch.dout, scratch.mlp_branch);
  const Tensor dpre = gradient_of(expansion_, scratch.dpre, scratch.dpre);
  {
    const Span span = part("d mlp projection and GELU");
    const Tensor dy = convert_gradient(mlp_projection_, dbranch, scratch.dmlp_fp8,
                                       if_dropped(mlp_dropout_, mlp_projection_.dbias), accumulate);
    linear_.linear_gelu_backward(weight_of(mlp_projection_), dy, flat(activations_.pre), dpre, expansion_.dbias,
                                 accumulate);
  }
  {
    const Span span = part("d expansion");
    linear_.linear_backward(Tensor{}, weight_of(expansion_), dpre, flat(scratch.branch), Tensor{}, Tensor{},
                            accumulate);
  }
  norm_backward(norm2_, scratch.branch, scratch.dout, scratch.dmiddle,
                if_kept(attention_dropout_, attention_projection_.dbias), accumulate);
}

void GptBlock::attention_backward_data(const GptScratch& scratch, const GptLinear& before, bool accumulate) {
  const GptBlockActivations& a = activations_;
  if (attention_dropout_.rate > 0.0f)
    activation_.dropout(scratch.dmiddle, attention_dropout_, scratch.attention_branch);
  const Tensor& dbranch = through(attention_dropout_, scratch.dmiddle, scratch.attention_branch);
  {
    const Span span = part("d attention projection");
    const Tensor dy = convert_gradient(attention_projection_, dbranch, scratch.dattention_fp8,
                                       if_dropped(attention_dropout_, attention_projection_.dbias), accumulate);
    linear_.linear_backward(Tensor{}, weight_of(attention_projection_), dy, flat(scratch.branch), Tensor{}, Tensor{},
                            accumulate);
  }
  {
    const Span span = part("d attention");
    attention_.attention_backward(a.qkv, shape_.heads, a.attended, a.attention_statistics, scratch.branch,
                                  scratch.dqkv);
  }
  {
    const Span span = part("d qkv");
    const Tensor dy = convert_gradient(qkv_, scratch.dqkv, scratch.dqkv_fp8, qkv_.dbias, accumulate);
    linear_.linear_backward(Tensor{}, weight_of(qkv_), dy, flat(scratch.branch), Tensor{}, Tensor{}, accumulate);
  }
  norm_backward(norm1_, scratch.branch, scratch.dmiddle, scratch.din, if_kept(mlp_dropout_, before.dbias), accumulate);
}

void GptBlock::mlp_backward_weights(const GptScratch& scratch, bool accumulate, const Model::Ready& ready) {
  const Tensor& dbranch = through(mlp_dropout_, scratch.dout, scratch.mlp_branch);
  weight_gradient(activations_.hidden, mlp_projection_, gradient_of(mlp_projection_, dbranch, scratch.dmlp_fp8),
                  if_dropped(mlp_dropout_, mlp_projection_.dbias), accumulate);
  report(mlp_projection_weight, expansion_weight, ready);
  weight_gradient(norm2_.output, expansion_, gradient_of(expansion_, scratch.dpre, scratch.dpre), Tensor{}, accumulate);
  report(expansion_weight, attention_projection_weight, ready);
}

void GptBlock::attention_backward_weights(const GptScratch& scratch, bool accumulate, const Model::Ready& ready) {
  const Tensor& dbranch = through(attention_dropout_, scratch.dmiddle, scratch.attention_branch);
  weight_gradient(input_of(activations_.attended, activations_.attended_fp8), attention_projection_,
                  gradient_of(attention_projection_, dbranch, scratch.dattention_fp8),
                  if_dropped(attention_dropout_, attention_projection_.dbias), accumulate);
  report(attention_projection_weight, qkv_weight, ready);
  weight_gradient(norm1_.output, qkv_, gradient_of(qkv_, scratch.dqkv, scratch.dqkv_fp8), qkv_.dbias, accumulate);
  report(qkv_weight, kEnd, ready);
}

void GptBlock::weight_gradient(const Tensor& input, const GptLinear& layer, const Tensor& doutput, const Tensor& dbias,
                               bool accumulate) {
  const Span span = part("weight gradient");
  const Tensor sums = fp8_ ? Tensor{} : dbias;  // convert_gradient() has made it
  linear_.linear_backward(flat(input), weight_of(layer), doutput, Tensor{}, layer.dweight, sums, accumulate);
}

void GptBlock::norm_backward(const GptNorm& norm, const Tensor& doutput, const Tensor& dresidual, const Tensor& dinput,
                             const Tensor& dinput_sums, bool accumulate) {
  const Span span = part("d norm");
  norm_.layer_norm_backward(norm.input, norm.weight, norm.statistics, doutput, dresidual, dinput, norm.dweight,
                            norm.dbias, dinput_sums, accumulate);
}

void GptBlock::report(std::size_t begin, std::size_t end, const Model::Ready& ready) const {
  for (std::size_t i = begin; i < end; ++i) ready(first_ + i);
}

}  // namespace ddptrain
