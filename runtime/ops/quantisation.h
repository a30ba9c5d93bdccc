#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/ops/family.h"

namespace ddptrain {

/// How tensors of a model are scaled to fit FP8: twice the largest magnitude written with a scale before the last
/// renew() is the largest that FP8 holds ("delayed scaling"; what is beyond is cut off). When first written with, a
/// scale goes by that tensor.
class Fp8Scales {
 public:
  virtual ~Fp8Scales() = default;

  virtual Fp8Scale* at(std::size_t i) = 0;  ///< To be the Tensor::scale of one tensor, of the format given for i.
  /// From now on all scales go by what was written with them since the last call, if anything was. Tensors in FP8 are
  /// not read beyond it.
  virtual void renew() = 0;
  /// The next renew() ignores tensors that were written since the last one (an evaluation between steps).
  virtual void forget_magnitudes() = 0;
  /// Other values have been copied into the states: goes on by these. Waits.
  virtual void restored() = 0;
};

/// Tensors in FP8. The matrices that a linear layer multiplies may be in FP8, all of them: x and weight in e4m3, dy in
/// e5m2. to_fp8 makes them of others; operations whose output is said to be one write it themselves if the caller
/// wants it. All but fits() need options().fp8, and throw Error without.
class QuantisationOps : public Family<QuantisationOps> {
 public:
  /// Whether such a matrix may be in FP8: where options().fp8 is set, and both are multiples of 16.
  virtual bool fits(std::int64_t rows, std::int64_t columns) const = 0;
  /// One for each of `formats` (e4m3 or e5m2). What they learn lies in `states`, f32 [formats, kStateSize], which are
  /// the caller's, are set to begin with, and outlive the result. Not while a graph is captured.
  virtual std::unique_ptr<Fp8Scales> make_scales(const std::vector<DType>& formats, const Tensor& states) = 0;
  static constexpr std::int64_t kStateSize = 8;
  /// y [rows, columns] of FP8 = x. Where `sums` [columns] has data: sums (+)= the sums over the rows of x, as in
  /// linear_backward's dbias.
  virtual void to_fp8(const Tensor& x, const Tensor& y, const Tensor& sums, bool accumulate) = 0;

  static std::unique_ptr<QuantisationOps> on_cpu(Device& device);
  static std::unique_ptr<QuantisationOps> on_cuda(Device& device);
};

}  // namespace ddptrain
