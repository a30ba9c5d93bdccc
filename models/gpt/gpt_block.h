#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "models/gpt/shape.h"
#include "runtime/ops/activation.h"
#include "runtime/ops/attention.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/norm.h"
#include "runtime/ops/quantisation.h"
#include "runtime/train/model.h"

namespace ddptrain {

/// What of a GPT's activations is recomputed in the backward pass instead of being kept.
enum class Recompute : std::uint8_t {
  none,
  gelu,   ///< The GELU's output.
  block,  ///< All but the input of a block.
};

/// A linear layer's parameters and their gradients.
struct GptLinear {
  Tensor weight, bias, dweight, dbias;
  Tensor weight_fp8;                   ///< The weight as of the last forward pass.
  Fp8Scale* gradient_scale = nullptr;  ///< Of the gradient of its output.
};

/// A layer norm: parameters, their gradients, and the activations of the batch. Its input is the residual stream.
struct GptNorm {
  Tensor weight, bias, dweight, dbias;
  Tensor input, output;  ///< [batch, sequence, width]
  Tensor statistics;     ///< [rows, 2]
};

/// Activations of a block beside those of its norms. In FP8, the norms' outputs, `hidden` and dpre are e4m3 and e5m2,
/// and tensors named _fp8 are copies of others; they are unused without.
struct GptBlockActivations {
  Tensor qkv;       ///< [batch, sequence, 3 width]
  Tensor attended;  ///< [batch, sequence, width]
  Tensor attended_fp8;
  Tensor attention_statistics;  ///< [batch, heads, sequence]
  Tensor pre, hidden;           ///< [batch, sequence, feed-forward], before and after the GELU
};

/// Memory that all blocks share. The gradients of the residual stream after, within and before a block are the same
/// memory where there is dropout; without it they are what the linear layers' gradients come from, and are apart.
struct GptScratch {
  Tensor dout, dmiddle, din;            ///< [batch, sequence, width]
  Tensor mlp_branch, attention_branch;  ///< dout and dmiddle behind the dropout; unused without.
  Tensor dpre;                          ///< [batch, sequence, feed-forward]
  Tensor dqkv;                          ///< [batch, sequence, 3 width]
  Tensor branch;  ///< [batch, sequence, width]: what a half adds; in backward the gradient of a norm's output.
  Tensor dmlp_fp8, dattention_fp8;  ///< Of dout and dmiddle, behind the dropout.
  Tensor dqkv_fp8;
};

/// One block: x += dropout(projection(attention(norm1(x)))); x += dropout(projection(gelu(linear(norm2(x))))).
class GptBlock {
 public:
  static constexpr std::size_t kParameters = 12;

  GptBlock(Device& device, const GptShape& shape, Recompute recompute)
      : device_(device),
        linear_(device.get<LinearOps>()),
        norm_(device.get<NormOps>()),
        attention_(device.get<AttentionOps>()),
        activation_(device.get<ActivationOps>()),
        quantisation_(device.get<QuantisationOps>()),
        shape_(shape),
        recompute_(recompute) {}

  /// Adds those of block `layer` to `specs`, from its end to its start.
  static void append_parameters(const GptShape& shape, std::int64_t layer, std::vector<ParameterSpec>& specs);
  /// `first`: place of the block's first parameter in the model's.
  void bind(const std::vector<Tensor>& weights, const std::vector<Tensor>& gradients, std::size_t first);
  /// Once, so that the linear layers can multiply in FP8: takes memory for the weights' copies, e4m3 of the shape that
  /// `allocate` is given.
  void prepare_fp8(const std::function<Tensor(const Shape&)>& allocate);
  /// The formats of a block's scales, and those to use: `first` and the following ones of `scales`.
  static std::vector<DType> scale_formats();
  void bind_scales(Fp8Scales& scales, std::size_t first);
  /// Whether they do, from the next forward pass on.
  void set_fp8(bool fp8);

  GptNorm& norm1() { return norm1_; }
  GptNorm& norm2() { return norm2_; }
  const GptLinear& mlp_projection() const { return mlp_projection_; }
  GptBlockActivations& activations() { return activations_; }
  void set_dropout(const Dropout& attention, const Dropout& mlp) {
    attention_dropout_ = attention;
    mlp_dropout_ = mlp;
  }

  /// From norm1's output to `branch`, which is still to be added to the residual stream.
  void forward(const Tensor& branch);
  /// Adds it, for `next`, the norm behind the block.
  void add_and_norm(const Tensor& branch, const GptNorm& next);
  /// Computes again, bit by bit, what was not kept.
  void restore(const Tensor& branch);

  /// Gradients of activations, from scratch.dout to dmiddle and on to din, of the norms' parameters and of the biases
  /// that come along: the expansion's and, without dropout, those of the layers that add to a norm's input. `before`:
  /// the layer that adds to norm1's, none for the first block. What the weights' gradients need stays in the scratch.
  void mlp_backward_data(const GptScratch& scratch, bool accumulate);
  void attention_backward_data(const GptScratch& scratch, const GptLinear& before, bool accumulate);
  /// The rest of the linear layers' gradients; report their parameters and the norm's.
  void mlp_backward_weights(const GptScratch& scratch, bool accumulate, const Model::Ready& ready);
  void attention_backward_weights(const GptScratch& scratch, bool accumulate, const Model::Ready& ready);

 private:
  Span part(const char* name) const { return {device_.timeline(), Lane::compute, device_.compute_stream(), name}; }
  /// What the linear layers multiply.
  const Tensor& weight_of(const GptLinear& layer) const { return fp8_ ? layer.weight_fp8 : layer.weight; }
  const Tensor& input_of(const Tensor& x, const Tensor& fp8) const { return fp8_ ? fp8 : x; }
  /// The gradient of what `layer` gives, as it is multiplied: [rows, columns].
  Tensor gradient_of(const GptLinear& layer, const Tensor& dy, const Tensor& fp8) const;
  /// The same, made from dy where it is in FP8, and then with the layer's bias gradient where dbias has data.
  Tensor convert_gradient(const GptLinear& layer, const Tensor& dy, const Tensor& fp8, const Tensor& dbias,
                          bool accumulate);
  void convert_weights();
  void attend(const Tensor& branch);
  void expand();
  void weight_gradient(const Tensor& input, const GptLinear& layer, const Tensor& doutput, const Tensor& dbias,
                       bool accumulate);
  void norm_backward(const GptNorm& norm, const Tensor& doutput, const Tensor& dresidual, const Tensor& dinput,
                     const Tensor& dinput_sums, bool accumulate);
  float epsilon() const { return static_cast<float>(shape_.norm_epsilon); }
  void report(std::size_t begin, std::size_t end, const Model::Ready& ready) const;

  Device& device_;
  LinearOps& linear_;
  NormOps& norm_;
  AttentionOps& attention_;
  ActivationOps& activation_;
  QuantisationOps& quantisation_;
  GptShape shape_;
  Recompute recompute_;
  std::size_t first_ = 0;
  GptLinear qkv_, attention_projection_, expansion_, mlp_projection_;
  GptNorm norm1_, norm2_;
  GptBlockActivations activations_;
  Dropout attention_dropout_, mlp_dropout_;
  bool fp8_ = false;
};

/// [rows, columns] of an activation [batch, sequence, columns].
Tensor flat(const Tensor& activation);

}  // namespace ddptrain
