#pragma once

#include "runtime/ops/family.h"

namespace ddptrain {

/// Convolutions.
class ConvolutionOps : public Family<ConvolutionOps> {
 public:
  /// y = x * w (valid, stride 1) + bias, then ReLU; bias and ReLU only where `bias` has data.
  virtual void conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) = 0;
  /// dweight from x and dy; dx if it has data.
  virtual void conv2d_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx,
                               const Tensor& dweight, bool accumulate) = 0;

  static std::unique_ptr<ConvolutionOps> on_cpu(Device& device);
  static std::unique_ptr<ConvolutionOps> on_cuda(Device& device);
};

}  // namespace ddptrain
