#pragma once

#include "runtime/ops/family.h"
#include "runtime/ops/terms.h"

namespace ddptrain {

/// What add_rms_norm() takes, without dropout. `sum` shares memory with none of the others.
struct AddedNorm {
  Tensor residual;
  Tensor branch;
  Tensor weight;
  float epsilon;
  Tensor sum;
  Tensor y;
  Tensor statistics;
};

/// RMS norm (Zhang and Sennrich, "Root mean square layer normalization", arXiv:1910.07467).
class RmsNormOps : public Family<RmsNormOps> {
 public:
  /// y = x / sqrt(mean of x^2 + epsilon) * weight over the last dimension. statistics [rows, 1]:
  /// 1 / sqrt(mean of x^2 + epsilon). y may be e4m3.
  virtual void rms_norm(const Tensor& x, const Tensor& weight, float epsilon, const Tensor& y,
                        const Tensor& statistics) = 0;
  /// sum = residual + dropout(branch); y = rms_norm(sum). See NormOps::add_layer_norm().
  virtual void add_rms_norm(const Tensor& residual, const Terms& branch, const Dropout& dropout, const Tensor& weight,
                            float epsilon, const Tensor& sum, const Tensor& y, const Tensor& statistics) = 0;
  /// The same. Returns y as a matrix.
  Tensor add_rms_norm(const AddedNorm& norm) {
    add_rms_norm(norm.residual, norm.branch, {}, norm.weight, norm.epsilon, norm.sum, norm.y, norm.statistics);
    Tensor y = norm.y;
    y.shape = {y.size() / y.shape.back(), y.shape.back()};
    return y;
  }
  /// dx = (dresidual if it has data) + the gradient through rms_norm; dx may be the memory of dresidual, or of dy's
  /// first term. For dx_sums, which may have no data, see NormOps::layer_norm_backward().
  virtual void rms_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& statistics, const Terms& dy,
                                 const Tensor& dresidual, const Tensor& dx, const Tensor& dweight,
                                 const Tensor& dx_sums, bool accumulate) = 0;

  static std::unique_ptr<RmsNormOps> on_cpu(Device& device);
  static std::unique_ptr<RmsNormOps> on_cuda(Device& device);
};

}  // namespace ddptrain
