#include "models/gpt_block.h"

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
  const std::int64_t columns = activation.shape.back();
  return {activation.data, activation.dtype, {activation.size() / columns, columns}};
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
  const auto layer = [&](std::size_t weight) -> GptLinear {
    return {weights.at(first + weight), weights.at(first + weight + 1), gradients.at(first + weight),
            gradients.at(first + weight + 1)};
  };
  const auto bind_norm = [&](GptNorm& norm, std::size_t weight) {
    const GptLinear parameters = layer(weight);
    norm.weight = parameters.weight;
    norm.bias = parameters.bias;
    norm.dweight = parameters.dweight;
    norm.dbias = parameters.dbias;
  };
  mlp_projection_ = layer(mlp_projection_weight);
  expansion_ = layer(expansion_weight);
  bind_norm(norm2_, norm2_weight);
  attention_projection_ = layer(attention_projection_weight);
  qkv_ = layer(qkv_weight);
  bind_norm(norm1_, norm1_weight);
}

void GptBlock::forward(const GptNorm& next, const Tensor& branch) {
  attend(branch);
  expand();
  {
    const Span span = part("mlp projection");
    backend_.linear(flat(activations_.hidden), mlp_projection_.weight, mlp_projection_.bias, flat(branch));
  }
  const Span span = part("add and norm");
  backend_.add_layer_norm(norm2_.input, branch, mlp_dropout_, next.weight, next.bias, shape_.norm_epsilon, next.input,
                          next.output, next.statistics);
}

void GptBlock::restore(Recompute recompute, const Tensor& branch) {
  if (recompute == Recompute::gelu) backend_.gelu(flat(activations_.pre), flat(activations_.hidden));
  if (recompute != Recompute::block) return;
  backend_.layer_norm(norm1_.input, norm1_.weight, norm1_.bias, shape_.norm_epsilon, norm1_.output, norm1_.statistics);
  attend(branch);
  expand();
}

/// From norm1's output to norm2's.
void GptBlock::attend(const Tensor& branch) {
  const GptBlockActivations& a = activations_;
  {
    const Span span = part("qkv");
    backend_.linear(flat(norm1_.output), qkv_.weight, qkv_.bias, flat(a.qkv));
  }
  {
    const Span span = part("attention");
    backend_.attention(a.qkv, shape_.heads, a.attended, a.attention_statistics);
  }
  {
    const Span span = part("attention projection");
    backend_.linear(flat(a.attended), attention_projection_.weight, attention_projection_.bias, flat(branch));
  }
  const Span span = part("add and norm");
  backend_.add_layer_norm(norm1_.input, branch, attention_dropout_, norm2_.weight, norm2_.bias, shape_.norm_epsilon,
                          norm2_.input, norm2_.output, norm2_.statistics);
}

void GptBlock::expand() {
  const Span span = part("expansion and GELU");
  backend_.linear_gelu(flat(norm2_.output), expansion_.weight, expansion_.bias, flat(activations_.pre),
                       flat(activations_.hidden));
}

void GptBlock::mlp_backward_data(const GptScratch& scratch, bool accumulate) {
  if (mlp_dropout_.rate > 0.0f) backend_.dropout(scratch.dout, mlp_dropout_, scratch.mlp_branch);
  const Tensor& dbranch = through(mlp_dropout_, scratch.dout, scratch.mlp_branch);
  {
    const Span span = part("d mlp projection and GELU");
    backend_.linear_gelu_backward(mlp_projection_.weight, flat(dbranch), flat(activations_.pre), flat(scratch.dpre),
                                  expansion_.dbias, accumulate);
  }
  {
    const Span span = part("d expansion");
    backend_.linear_backward(Tensor{}, expansion_.weight, flat(scratch.dpre), flat(scratch.branch), Tensor{}, Tensor{},
                             accumulate);
  }
  norm_backward(norm2_, scratch.branch, scratch.dout, scratch.dmiddle,
                if_kept(attention_dropout_, attention_projection_.dbias), accumulate);
}

void GptBlock::attention_backward_data(const GptScratch& scratch, const GptLinear& before, bool accumulate) {
  const GptBlockActivations& a = activations_;
  if (attention_dropout_.rate > 0.0f) backend_.dropout(scratch.dmiddle, attention_dropout_, scratch.attention_branch);
  const Tensor& dbranch = through(attention_dropout_, scratch.dmiddle, scratch.attention_branch);
  {
    const Span span = part("d attention projection");
    backend_.linear_backward(Tensor{}, attention_projection_.weight, flat(dbranch), flat(scratch.branch), Tensor{},
                             Tensor{}, accumulate);
  }
  {
    const Span span = part("d attention");
    backend_.attention_backward(a.qkv, shape_.heads, a.attended, a.attention_statistics, scratch.branch, scratch.dqkv);
  }
  {
    const Span span = part("d qkv");
    backend_.linear_backward(Tensor{}, qkv_.weight, flat(scratch.dqkv), flat(scratch.branch), Tensor{}, Tensor{},
                             accumulate);
  }
  norm_backward(norm1_, scratch.branch, scratch.dmiddle, scratch.din, if_kept(mlp_dropout_, before.dbias), accumulate);
}

void GptBlock::mlp_backward_weights(const GptScratch& scratch, bool accumulate, const Model::Ready& ready) {
  const Tensor& dbranch = through(mlp_dropout_, scratch.dout, scratch.mlp_branch);
  weight_gradient(activations_.hidden, mlp_projection_, dbranch, if_dropped(mlp_dropout_, mlp_projection_.dbias),
                  accumulate);
  report(mlp_projection_weight, expansion_weight, ready);
  weight_gradient(norm2_.output, expansion_, scratch.dpre, Tensor{}, accumulate);
  report(expansion_weight, attention_projection_weight, ready);
}

void GptBlock::attention_backward_weights(const GptScratch& scratch, bool accumulate, const Model::Ready& ready) {
  const Tensor& dbranch = through(attention_dropout_, scratch.dmiddle, scratch.attention_branch);
  weight_gradient(activations_.attended, attention_projection_, dbranch,
                  if_dropped(attention_dropout_, attention_projection_.dbias), accumulate);
  report(attention_projection_weight, qkv_weight, ready);
  weight_gradient(norm1_.output, qkv_, scratch.dqkv, qkv_.dbias, accumulate);
  report(qkv_weight, kEnd, ready);
}

void GptBlock::weight_gradient(const Tensor& input, const GptLinear& layer, const Tensor& doutput, const Tensor& dbias,
                               bool accumulate) {
  const Span span = part("weight gradient");
  backend_.linear_backward(flat(input), layer.weight, flat(doutput), Tensor{}, layer.dweight, dbias, accumulate);
}

void GptBlock::norm_backward(const GptNorm& norm, const Tensor& doutput, const Tensor& dresidual, const Tensor& dinput,
                             const Tensor& dinput_sums, bool accumulate) {
  const Span span = part("d norm");
  backend_.layer_norm_backward(norm.input, norm.weight, norm.statistics, doutput, dresidual, dinput, norm.dweight,
                               norm.dbias, dinput_sums, accumulate);
}

void GptBlock::report(std::size_t begin, std::size_t end, const Model::Ready& ready) const {
  for (std::size_t i = begin; i < end; ++i) ready(first_ + i);
}

}  // namespace ddptrain
