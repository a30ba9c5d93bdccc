#pragma once

#include <array>
#include <string>

#include "models/layers/activations.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/quantisation.h"
#include "runtime/train/model.h"

namespace ddptrain {

/// A linear layer (add_linear()): weight, bias (if it has one) and their gradients. For FP8 it also has a copy of the
/// weight, and scales of weight, input and the gradient of the output. With FP8 the caller gives an e4m3 input with
/// input_scale(), and convert() makes the gradient of the output e5m2.
class Linear {
 public:
  /// `shape` is the weight's.
  Linear(Device& device, const Shape& shape, bool has_bias)
      : linear_(device.get<LinearOps>()),
        quantisation_(device.get<QuantisationOps>()),
        shape_(shape),
        has_bias_(has_bias) {}

  std::size_t parameters() const { return has_bias_ ? 2 : 1; }
  /// `first` is the index of the weight among the model's parameters. The bias follows.
  void bind(const ModelTensors& tensors, std::size_t first) {
    weight_ = tensors.weights.at(first);
    dweight_ = tensors.gradients.at(first);
    if (!has_bias_) return;
    bias_ = tensors.weights.at(first + 1);
    dbias_ = tensors.gradients.at(first + 1);
  }
  const Tensor& bias() const { return bias_; }    ///< Without data if the layer has no bias.
  const Tensor& dbias() const { return dbias_; }  ///< The same.

  /// Asks for the copy of the weight, so that the layer can use FP8.
  void request_fp8(Activations& memory, const std::string& name, const Lifetime& lifetime) {
    memory.add(name + " weight fp8", DType::e4m3, shape_, lifetime, weight_fp8_);
  }
  static constexpr std::array kScaleFormats = {DType::e4m3, DType::e5m2, DType::e4m3};
  /// Uses the scales from index `first` on; they have the formats kScaleFormats.
  void bind_scales(Fp8Scales& scales, std::size_t first) {
    weight_fp8_.scale = scales.at(first);
    gradient_scale_ = scales.at(first + 1);
    input_scale_ = scales.at(first + 2);
  }
  Fp8Scale* input_scale() const { return input_scale_; }
  /// Takes effect in the next forward pass.
  void set_fp8(bool fp8) { fp8_ = fp8; }
  bool fp8() const { return fp8_; }
  /// Call it once before a forward pass and its backward pass. Does nothing without FP8.
  void convert_weight() {
    if (fp8_) quantisation_.to_fp8(weight_, weight_fp8_, Tensor{}, false);
  }

  // Activations are [batch, sequence, columns].
  /// y = x weight^T + bias. Without `adds_bias` the bias is left out, because another rank adds it.
  void forward(const Tensor& x, const Tensor& y, bool adds_bias = true) {
    linear_.linear(flat(x), weight(), adds_bias ? bias_ : Tensor{}, flat(y));
  }
  void forward(const AddedNorm& x, const Tensor& y) { linear_.norm_linear(x, weight(), bias_, flat(y)); }
  /// See LinearOps::linear_gelu().
  void forward_gelu(const Tensor& x, const Tensor& pre, const Tensor& y, bool again) {
    linear_.linear_gelu(flat(x), weight(), bias_, flat(pre), flat(y), again);
  }
  /// See LinearOps::linear_swiglu().
  void forward_swiglu(const Tensor& x, const Tensor& pre, const Tensor& y) {
    linear_.linear_swiglu(flat(x), weight(), bias_, flat(pre), flat(y));
  }
  void forward_swiglu(const AddedNorm& x, const Tensor& pre, const Tensor& y) {
    linear_.norm_linear_swiglu(x, weight(), bias_, flat(pre), flat(y));
  }

  /// The gradient of the output for the functions below: dy without FP8, otherwise `copy` with this layer's scale.
  Tensor gradient(const Tensor& dy, const Tensor& copy) const {
    Tensor gradient = flat(fp8_ ? copy : dy);
    gradient.scale = gradient_scale_;
    return gradient;
  }
  /// The same, and with FP8 writes the copy. With FP8, if dbias has data, dbias = the sums of dy over the rows.
  Tensor convert(const Tensor& dy, const Tensor& copy, const Tensor& dbias, bool accumulate) {
    Tensor result = gradient(dy, copy);
    if (fp8_) quantisation_.to_fp8(flat(dy), result, dbias, accumulate);
    return result;
  }
  /// dx = dy weight. `dy` is a result of gradient() or convert().
  void backward_data(const Tensor& dy, const Tensor& dx) {
    linear_.linear_backward(Tensor{}, weight(), dy, flat(dx), Tensor{}, Tensor{}, false);
  }
  /// The same, and through the GELU before this layer: see LinearOps::linear_gelu_backward().
  void backward_gelu(const Tensor& dy, const Tensor& pre, const Tensor& dpre, const Tensor& dbias, bool accumulate) {
    linear_.linear_gelu_backward(weight(), dy, flat(pre), dpre, dbias, accumulate);
  }
  /// The same, and through the SwiGLU before this layer: see LinearOps::linear_swiglu_backward().
  void backward_swiglu(const Tensor& dy, const Tensor& pre, const Tensor& product, const Tensor& dpre,
                       const Tensor& y) {
    linear_.linear_swiglu_backward(weight(), dy, flat(pre), flat(product), dpre, y ? flat(y) : Tensor{});
  }
  /// The gradient of the weight. Without FP8, also dbias if it has data.
  void backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dbias, bool accumulate) {
    linear_.linear_backward(flat(x), weight(), dy, Tensor{}, dweight_, fp8_ ? Tensor{} : dbias, accumulate);
  }

 private:
  const Tensor& weight() const { return fp8_ ? weight_fp8_ : weight_; }

  LinearOps& linear_;
  QuantisationOps& quantisation_;
  Shape shape_;  ///< The weight's.
  bool has_bias_;
  Tensor weight_;
  Tensor bias_;
  Tensor dweight_;
  Tensor dbias_;
  Tensor weight_fp8_;
  Fp8Scale* gradient_scale_ = nullptr;
  Fp8Scale* input_scale_ = nullptr;
  bool fp8_ = false;
};

}  // namespace ddptrain
