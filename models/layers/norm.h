#pragma once

#include <cstdint>
#include <vector>

#include "models/layers/activations.h"
#include "runtime/ops/norm.h"
#include "runtime/train/model.h"

namespace ddptrain {

/// Layer norm of the residual stream (add_norm()): parameters, their gradients, and the activations of a batch.
class Norm {
 public:
  static constexpr std::size_t kParameters = 2;

  Norm(Device& device, std::int64_t width, float epsilon);

  void bind(const ModelTensors& tensors, std::size_t first);

  /// Memory of `output` and of what the backward pass needs besides `input`.
  void allocate(Activations& memory);
  void fit(const BatchShape& shape);
  Tensor input, output;  ///< [batch, sequence, width]; the output may be e4m3.

  /// output = norm(input)
  void forward();
  /// input = residual + dropout(branch); output = norm(input)
  void forward(const Tensor& residual, const Tensor& branch, const Dropout& dropout);
  /// dinput = dresidual (where it has data) + the gradient through the norm. dinput_sums: see NormOps.
  void backward(const Tensor& doutput, const Tensor& dresidual, const Tensor& dinput, const Tensor& dinput_sums,
                bool accumulate);

 private:
  NormOps& norm_;
  std::int64_t width_;
  float epsilon_;
  Tensor weight_, bias_, dweight_, dbias_;
  Tensor statistics_;  ///< [rows, 2]
};

}  // namespace ddptrain
