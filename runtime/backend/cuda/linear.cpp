#include "runtime/backend/cuda/cuda_backend.h"
#include "runtime/backend/cuda/matmul.h"
#include "runtime/backend/expect_tensor.h"
#include "runtime/core/error.h"

namespace ddptrain {

namespace {

struct LinearDims {
  std::int64_t batch, in, out;
};

LinearDims dims_of(const char* what, const Tensor& x, const Tensor& weight, DType dtype) {
  DDP_CHECK(x.shape.size() == 2 && weight.shape.size() == 2, "{}: x and weight must have two dimensions", what);
  const LinearDims d{x.dim(0), x.dim(1), weight.dim(0)};
  expect_tensor(x, what, dtype, x.shape);
  expect_tensor(weight, what, dtype, {d.out, d.in});
  return d;
}

}  // namespace

void CudaBackend::linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) {
  const LinearDims d = dims_of("linear: x, weight", x, weight, dtype());
  expect_tensor(y, "linear: y", dtype(), {d.batch, d.out});
  if (bias) expect_tensor(bias, "linear: bias", dtype(), {d.out});
  cuda::Gemm gemm{d.batch, d.out, d.in, false, true, dtype(), dtype(), false};
  matmul().gemm(gemm, x.data, weight.data, bias.data, y.data, compute_.get());
}

void CudaBackend::linear_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx,
                                  const Tensor& dweight, const Tensor& dbias, bool accumulate) {
  const LinearDims d = dims_of("linear_backward: x, weight", x, weight, dtype());
  expect_tensor(dy, "linear_backward: dy", dtype(), {d.batch, d.out});
  expect_tensor(dweight, "linear_backward: dweight", dtype(), {d.out, d.in});
  if (dx) expect_tensor(dx, "linear_backward: dx", dtype(), {d.batch, d.in});
  if (dbias) expect_tensor(dbias, "linear_backward: dbias", dtype(), {d.out});
  if (dbias) sum_columns(dy, dbias, accumulate);
  const cuda::Gemm weight_product{d.out, d.in, d.batch, true, false, dtype(), dtype(), accumulate};
  matmul().gemm(weight_product, dy.data, x.data, nullptr, dweight.data, compute_.get());
  if (!dx) return;
  const cuda::Gemm input_product{d.batch, d.in, d.out, false, false, dtype(), dtype(), false};
  matmul().gemm(input_product, dy.data, weight.data, nullptr, dx.data, compute_.get());
}

}  // namespace ddptrain
