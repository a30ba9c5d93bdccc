#pragma once

#include <array>

#include "models/layers/activations.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/quantisation.h"
#include "runtime/train/model.h"

namespace ddptrain {

/// A linear layer (add_linear()): weight, bias, their gradients, and what its products in FP8 need: a copy of the
/// weight, and scales of weight, input and the gradient of the output. Whether products are in FP8 is its own affair:
/// in FP8 its input is e4m3 with input_scale(), and convert() makes the gradient of its output e5m2.
class Linear {
 public:
  static constexpr std::size_t kParameters = 2;

  /// `shape`: of the weight.
  Linear(Device& device, const Shape& shape);

  /// `first`: place of the weight in the model's parameters.
  void bind(const ModelTensors& tensors, std::size_t first);
  const Tensor& dbias() const { return dbias_; }

  /// Takes memory for the copy of the weight, so that products can be in FP8.
  void prepare_fp8(Activations& memory);
  static constexpr std::array kScaleFormats = {DType::e4m3, DType::e5m2, DType::e4m3};
  /// `first`: place among the scales, of these formats.
  void bind_scales(Fp8Scales& scales, std::size_t first);
  Fp8Scale* input_scale() const { return input_scale_; }
  /// From the next forward pass on.
  void set_fp8(bool fp8) { fp8_ = fp8; }
  bool fp8() const { return fp8_; }
  /// Once for a forward pass and the backward pass that follows. Nothing without FP8.
  void convert_weight();

  // Activations are [batch, sequence, columns].
  /// `adds_bias`: else another rank does, whose part of y is added to this one.
  void forward(const Tensor& x, const Tensor& y, bool adds_bias = true);
  /// See LinearOps::linear_gelu().
  void forward_gelu(const Tensor& x, const Tensor& pre, const Tensor& y, bool again);

  /// The gradient of the output as it is multiplied: dy itself, or, in FP8, `copy` with this layer's scale.
  Tensor gradient(const Tensor& dy, const Tensor& copy) const;
  /// The same, and makes the copy. In FP8 also dbias (where it has data) = the sums of dy over the rows.
  Tensor convert(const Tensor& dy, const Tensor& copy, const Tensor& dbias, bool accumulate);
  /// `dy` of gradient() or convert().
  void backward_data(const Tensor& dy, const Tensor& dx);
  /// Through the GELU before this layer: see LinearOps::linear_gelu_backward().
  void backward_gelu(const Tensor& dy, const Tensor& pre, const Tensor& dpre, const Tensor& dbias, bool accumulate);
  /// The weight's gradient; without FP8 also dbias, where it has data.
  void backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dbias, bool accumulate);

 private:
  const Tensor& weight() const { return fp8_ ? weight_fp8_ : weight_; }

  LinearOps& linear_;
  QuantisationOps& quantisation_;
  Shape shape_;  ///< Of the weight.
  Tensor weight_, bias_, dweight_, dbias_;
  Tensor weight_fp8_;
  Fp8Scale* gradient_scale_ = nullptr;
  Fp8Scale* input_scale_ = nullptr;
  bool fp8_ = false;
};

}  // namespace ddptrain
