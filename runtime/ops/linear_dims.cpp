#include "runtime/ops/linear_dims.h"

#include "runtime/core/error.h"
#include "runtime/ops/expect_tensor.h"

namespace ddptrain {

namespace {

/// `rows`: x or dy, whose first dimension is the batch.
LinearDims dims_of(const char* what, const Tensor& rows, const Tensor& weight, DType dtype) {
  DDP_CHECK(rows.shape.size() == 2 && weight.shape.size() == 2, "{}: two dimensions are needed", what);
  const LinearDims d{rows.dim(0), weight.dim(1), weight.dim(0)};
  expect_tensor(weight, what, dtype, weight.shape);
  return d;
}

}  // namespace

LinearDims check_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y, DType dtype) {
  const LinearDims d = dims_of("linear: x, weight", x, weight, dtype);
  expect_tensor(x, "linear: x", dtype, {d.batch, d.in});
  expect_tensor(y, "linear: y", dtype, {d.batch, d.out});
  if (bias) expect_tensor(bias, "linear: bias", dtype, {d.out});
  return d;
}

LinearDims check_linear_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx,
                                 const Tensor& dweight, const Tensor& dbias, DType dtype) {
  const LinearDims d = dims_of("linear_backward: dy, weight", dy, weight, dtype);
  expect_tensor(dy, "linear_backward: dy", dtype, {d.batch, d.out});
  if (dweight) expect_tensor(x, "linear_backward: x", dtype, {d.batch, d.in});
  if (dweight) expect_tensor(dweight, "linear_backward: dweight", dtype, {d.out, d.in});
  if (dx) expect_tensor(dx, "linear_backward: dx", dtype, {d.batch, d.in});
  if (dbias) expect_tensor(dbias, "linear_backward: dbias", dtype, {d.out});
  return d;
}

}  // namespace ddptrain
