#include "runtime/backend/cuda/cuda_backend.h"
#include "runtime/backend/cuda/matmul.h"
#include "runtime/backend/linear_dims.h"

namespace ddptrain {

void CudaBackend::linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) {
  const LinearDims d = check_linear(x, weight, bias, y, dtype());
  cuda::Gemm gemm{d.batch, d.out, d.in, false, true, dtype(), dtype(), false};
  matmul().gemm(gemm, x.data, weight.data, bias.data, y.data, compute_.get());
}

void CudaBackend::linear_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx,
                                  const Tensor& dweight, const Tensor& dbias, bool accumulate) {
  const LinearDims d = check_linear_backward(x, weight, dy, dx, dweight, dbias, dtype());
  if (dbias) sum_columns(dy, dbias, accumulate);
  const cuda::Gemm weight_product{d.out, d.in, d.batch, true, false, dtype(), dtype(), accumulate};
  matmul().gemm(weight_product, dy.data, x.data, nullptr, dweight.data, compute_.get());
  if (!dx) return;
  const cuda::Gemm input_product{d.batch, d.in, d.out, false, false, dtype(), dtype(), false};
  matmul().gemm(input_product, dy.data, weight.data, nullptr, dx.data, compute_.get());
}

}  // namespace ddptrain
