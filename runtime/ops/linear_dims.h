#pragma once

#include <cstdint>

#include "runtime/core/tensor.h"

namespace ddptrain {

/// Sizes of a linear layer's product.
struct LinearDims {
  std::int64_t batch, in, out;
};

/// Check the tensors of LinearOps::linear and linear_backward: Error names the operation and the tensor.
LinearDims check_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y, DType dtype);
LinearDims check_linear_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx,
                                 const Tensor& dweight, const Tensor& dbias, DType dtype);

}  // namespace ddptrain
