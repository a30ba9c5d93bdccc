#pragma once

#include "runtime/ops/family.h"
#include "runtime/ops/terms.h"

namespace ddptrain {

/// Layer norm.
class NormOps : public Family<NormOps> {
 public:
  /// y = (x - mean) / sqrt(variance + epsilon) * weight + bias over the last dimension. statistics [rows, 2]: mean and
  /// 1 / sqrt(variance + epsilon). y may be e4m3.
  virtual void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon, const Tensor& y,
                          const Tensor& statistics) = 0;
  /// sum = residual + dropout(branch); y = layer_norm(sum). Dropout as in embed_tokens. `sum` is memory of its own.
  virtual void add_layer_norm(const Tensor& residual, const Terms& branch, const Dropout& dropout, const Tensor& weight,
                              const Tensor& bias, float epsilon, const Tensor& sum, const Tensor& y,
                              const Tensor& statistics) = 0;
  /// dx = (dresidual if it has data) + the gradient through layer_norm; dx may be the memory of dresidual, or of dy's
  /// first term.
  /// Where dx_sums [width] has data, it gets the sums of dx over the rows: the gradient of the bias of a linear layer
  /// whose output was added to x. It has the type of dweight and dbias.
  virtual void layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& statistics, const Terms& dy,
                                   const Tensor& dresidual, const Tensor& dx, const Tensor& dweight,
                                   const Tensor& dbias, const Tensor& dx_sums, bool accumulate) = 0;

  static std::unique_ptr<NormOps> on_cpu(Device& device);
  static std::unique_ptr<NormOps> on_cuda(Device& device);
};

}  // namespace ddptrain
