#include "runtime/ops/expect_tensor.h"

#include "runtime/core/error.h"

namespace ddptrain {

void expect_tensor(const Tensor& tensor, const char* what, DType dtype, const Shape& shape) {
  DDP_CHECK(tensor.data != nullptr, "{} has no data", what);
  DDP_CHECK(tensor.dtype == dtype, "{} is {}, expected {}", what, name_of(tensor.dtype), name_of(dtype));
  DDP_CHECK(tensor.shape == shape, "{} has shape [{}], expected [{}]", what, fmt::join(tensor.shape, ", "),
            fmt::join(shape, ", "));
}

}  // namespace ddptrain
