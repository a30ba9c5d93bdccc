#include "models/layers/norm.h"

namespace ddptrain {

Norm::Norm(Device& device, std::int64_t width, float epsilon)
    : norm_(device.get<NormOps>()), width_(width), epsilon_(epsilon) {}

void Norm::bind(const ModelTensors& tensors, std::size_t first) {
  weight_ = tensors.weights.at(first);
  bias_ = tensors.weights.at(first + 1);
  dweight_ = tensors.gradients.at(first);
  dbias_ = tensors.gradients.at(first + 1);
}

void Norm::allocate(Activations& memory) {
  output = memory.activation(width_);
  statistics_ = memory.statistics({memory.batch() * memory.sequence(), 2});
}

void Norm::fit(const BatchShape& shape) {
  shape.fit(input);
  shape.fit(output);
  statistics_.shape = {shape.rows(), 2};
}

void Norm::forward() { norm_.layer_norm(input, weight_, bias_, epsilon_, output, statistics_); }

void Norm::forward(const Tensor& residual, const Tensor& branch, const Dropout& dropout) {
  norm_.add_layer_norm(residual, branch, dropout, weight_, bias_, epsilon_, input, output, statistics_);
}

void Norm::backward(const Tensor& doutput, const Tensor& dresidual, const Tensor& dinput, const Tensor& dinput_sums,
                    bool accumulate) {
  norm_.layer_norm_backward(input, weight_, statistics_, doutput, dresidual, dinput, dweight_, dbias_, dinput_sums,
                            accumulate);
}

}  // namespace ddptrain
