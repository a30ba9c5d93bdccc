#pragma once

#include "runtime/ops/family.h"
#include "runtime/ops/rms_norm.h"

namespace ddptrain {

/// Linear layers, alone or with a GELU or SwiGLU. Products of a few rows may read weights and biases before earlier
/// operations have ended. So between them and what writes these there is a copy, an event, or an operation that neither
/// starts early nor lets its successor start (runtime/device/cuda/launch.cuh).
class LinearOps : public Family<LinearOps> {
 public:
  /// y [n, out] = x [n, in] weight^T + bias (if it has data). x and weight may be e4m3.
  virtual void linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) = 0;
  /// dx, dweight and dbias, each if it has data; x may be without if dweight is. dy may be e5m2; x and weight
  /// then are e4m3, and dbias has no data (to_fp8 gives it).
  virtual void linear_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx,
                               const Tensor& dweight, const Tensor& dbias, bool accumulate) = 0;
  /// pre [n, out] = x weight^T + bias; y = gelu(pre), the tanh form (Hendrycks and Gimpel, arXiv:1606.08415). x and
  /// weight may be e4m3, and so may y. `again`: gelu() may have to give the same bits; else y may be the GELU of the
  /// sum before it is rounded to pre's type.
  virtual void linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& pre,
                           const Tensor& y, bool again) = 0;
  virtual void gelu(const Tensor& pre, const Tensor& y) = 0;  ///< As linear_gelu's that was told so, bit by bit.
  /// dpre [n, hidden] = (dy [n, out] weight [out, hidden]) * gelu'(pre): the data gradient of a linear layer whose
  /// input was gelu(pre). dbias [hidden] gets the sums of dpre over the rows: the gradient of linear_gelu's bias. On
  /// CPUs it may have no data. dy and dpre may be e5m2, and weight e4m3, all of them.
  virtual void linear_gelu_backward(const Tensor& weight, const Tensor& dy, const Tensor& pre, const Tensor& dpre,
                                    const Tensor& dbias, bool accumulate) = 0;

  /// pre [n, 2 hidden] = x weight^T + bias; y [n, hidden] = GatedOps::swiglu() of it, bit by bit. x and weight may be
  /// e4m3, and so may y.
  virtual void linear_swiglu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& pre,
                             const Tensor& y) = 0;
  /// dpre [n, 2 hidden] = GatedOps::swiglu_backward() of pre and dy [n, out] weight [out, hidden]: the data gradient of
  /// a linear layer whose input was swiglu(pre). If y has data, it gets swiglu() of pre again, bit by bit. `product`
  /// [n, hidden] is memory for dy weight, and unspecified afterwards. What is written is not the memory of what is
  /// read. With FP8, dy and dpre are e5m2 and weight is e4m3, and y may be e4m3.
  virtual void linear_swiglu_backward(const Tensor& weight, const Tensor& dy, const Tensor& pre, const Tensor& product,
                                      const Tensor& dpre, const Tensor& y) = 0;

  /// linear() and linear_swiglu() of an RMS norm's output. Of the norm, only `sum` is sure to be written.
  virtual void norm_linear(const AddedNorm& norm, const Tensor& weight, const Tensor& bias, const Tensor& y) = 0;
  virtual void norm_linear_swiglu(const AddedNorm& norm, const Tensor& weight, const Tensor& bias, const Tensor& pre,
                                  const Tensor& y) = 0;

  static std::unique_ptr<LinearOps> on_cpu(Device& device);
  static std::unique_ptr<LinearOps> on_cuda(Device& device);
};

}  // namespace ddptrain
