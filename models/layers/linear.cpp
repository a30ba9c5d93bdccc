#include "models/layers/linear.h"

namespace ddptrain {

Tensor flat(const Tensor& activation) {
  Tensor matrix = activation;
  matrix.shape = {activation.size() / activation.shape.back(), activation.shape.back()};
  return matrix;
}

Linear::Linear(Device& device, const Shape& shape)
    : linear_(device.get<LinearOps>()), quantisation_(device.get<QuantisationOps>()), shape_(shape) {}

void Linear::bind(const ModelTensors& tensors, std::size_t first) {
  weight_ = tensors.weights.at(first);
  bias_ = tensors.weights.at(first + 1);
  dweight_ = tensors.gradients.at(first);
  dbias_ = tensors.gradients.at(first + 1);
}

void Linear::prepare_fp8(Activations& memory) { weight_fp8_ = memory.allocate(DType::e4m3, shape_); }

void Linear::bind_scales(Fp8Scales& scales, std::size_t first) {
  weight_fp8_.scale = scales.at(first);
  gradient_scale_ = scales.at(first + 1);
  input_scale_ = scales.at(first + 2);
}

void Linear::convert_weight() {
  if (fp8_) quantisation_.to_fp8(weight_, weight_fp8_, Tensor{}, false);
}

void Linear::forward(const Tensor& x, const Tensor& y, bool adds_bias) {
  linear_.linear(flat(x), weight(), adds_bias ? bias_ : Tensor{}, flat(y));
}

void Linear::forward_gelu(const Tensor& x, const Tensor& pre, const Tensor& y, bool again) {
  linear_.linear_gelu(flat(x), weight(), bias_, flat(pre), flat(y), again);
}

Tensor Linear::gradient(const Tensor& dy, const Tensor& copy) const {
  Tensor gradient = flat(fp8_ ? copy : dy);
  gradient.scale = gradient_scale_;
  return gradient;
}

Tensor Linear::convert(const Tensor& dy, const Tensor& copy, const Tensor& dbias, bool accumulate) {
  Tensor result = gradient(dy, copy);
  if (fp8_) quantisation_.to_fp8(flat(dy), result, dbias, accumulate);
  return result;
}

void Linear::backward_data(const Tensor& dy, const Tensor& dx) {
  linear_.linear_backward(Tensor{}, weight(), dy, flat(dx), Tensor{}, Tensor{}, false);
}

void Linear::backward_gelu(const Tensor& dy, const Tensor& pre, const Tensor& dpre, const Tensor& dbias,
                           bool accumulate) {
  linear_.linear_gelu_backward(weight(), dy, flat(pre), dpre, dbias, accumulate);
}

void Linear::backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dbias, bool accumulate) {
  linear_.linear_backward(flat(x), weight(), dy, Tensor{}, dweight_, fp8_ ? Tensor{} : dbias, accumulate);
}

}  // namespace ddptrain
