#pragma once

#include "runtime/core/tensor.h"

namespace ddptrain {

/// Throws Error naming operation and tensor unless it has data, this element type and this shape.
void expect_tensor(const Tensor& tensor, const char* what, DType dtype, const Shape& shape);

}  // namespace ddptrain
