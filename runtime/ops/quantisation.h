#pragma once

#include "runtime/ops/family.h"

namespace ddptrain {

/// Tensors in FP8. The matrices that a linear layer multiplies may be in FP8, all of them: x and weight in e4m3, dy in
/// e5m2. to_fp8 makes them of others; operations whose output is said to be one write it themselves where the caller
/// wants it. All but fits() and forgetting need options().fp8, and throw Error without.
class QuantisationOps : public Family<QuantisationOps> {
 public:
  /// Whether such a matrix may be in FP8: where options().fp8 is set, and both are multiples of 16.
  virtual bool fits(std::int64_t rows, std::int64_t columns) const = 0;
  /// For one tensor of a model, e4m3 or e5m2: it is scaled such that twice the largest magnitude written with this
  /// scale before the last renew_scales() is the largest that FP8 holds ("delayed scaling"; what is beyond is cut off).
  /// When first written with, it goes by that tensor. Of the device, and as long-lived.
  virtual Fp8Scale* make_scale(DType format) = 0;
  /// From now on all scales go by what was written with them since the last call, if anything was. Tensors in FP8 are
  /// not read beyond it.
  virtual void renew_scales() = 0;
  /// What was written since the last renew_scales() has no part in the next (an evaluation between steps).
  virtual void forget_magnitudes() = 0;
  /// y [rows, columns] of FP8 = x. Where `sums` [columns] has data: sums (+)= the sums over the rows of x, as in
  /// linear_backward's dbias.
  virtual void to_fp8(const Tensor& x, const Tensor& y, const Tensor& sums, bool accumulate) = 0;

  static std::unique_ptr<QuantisationOps> on_cpu(Device& device);
  static std::unique_ptr<QuantisationOps> on_cuda(Device& device);
};

}  // namespace ddptrain
