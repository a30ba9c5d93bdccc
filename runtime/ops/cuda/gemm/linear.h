#pragma once

#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/cuda/gemm/matmul.h"
#include "runtime/ops/cuda/gemm/tuner.h"
#include "runtime/ops/linear.h"

namespace ddptrain {

class CudaLinear final : public LinearOps, CudaOps {
 public:
  explicit CudaLinear(Device& device) : CudaOps(device), matmul_(device.get<cuda::MatmulPlans>()), tuner_(device) {}

  void linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) override;
  void linear_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx, const Tensor& dweight,
                       const Tensor& dbias, bool accumulate) override;
  void linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& pre, const Tensor& y,
                   bool again) override;
  void gelu(const Tensor& pre, const Tensor& y) override;
  void linear_gelu_backward(const Tensor& weight, const Tensor& dy, const Tensor& pre, const Tensor& dpre,
                            const Tensor& dbias, bool accumulate) override;

 private:
  /// The operations of these names on tensors in FP8, which have been checked.
  void linear_fp8(const LinearShape& d, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y);
  void linear_backward_fp8(const LinearShape& d, const Tensor& x, const Tensor& weight, const Tensor& dy,
                           const Tensor& dx, const Tensor& dweight, bool accumulate);
  void linear_gelu_backward_fp8(const LinearShape& d, const Tensor& weight, const Tensor& dy, const Tensor& pre,
                                const Tensor& dpre, const Tensor& dbias, bool accumulate);
  /// In place dpre [n, hidden] *= gelu'(pre); dbias, if it has data, (+)= the sums over its rows.
  void gelu_backward(const Tensor& pre, const Tensor& dpre, const Tensor& dbias, bool accumulate);
  /// linear_gelu_backward as a product whose epilogue sums up; false if there is none.
  bool linear_gelu_backward_fused(const cuda::Gemm& gemm, const cuda::GemmTensors& tensors, const Tensor& dbias,
                                  bool accumulate);

  cuda::MatmulPlans& matmul_;
  cuda::Tuner tuner_;
};

}  // namespace ddptrain
