#pragma once

#include "runtime/ops/family.h"

namespace ddptrain {

/// ReLU and dropout, with the bias before them.
class ActivationOps : public Family<ActivationOps> {
 public:
  /// In place x [n, features] = dropout(ReLU(x + bias)).
  virtual void bias_relu_dropout(const Tensor& x, const Tensor& bias, const Dropout& dropout) = 0;
  /// In place dy = y > 0 ? dy * scale : 0, and dbias = column sums over the last dimension. y = output of bias + ReLU
  /// (and dropout, which `scale` undoes).
  virtual void bias_relu_backward(const Tensor& y, const Tensor& dy, float scale, const Tensor& dbias,
                                  bool accumulate) = 0;
  /// y = x * mask / (1 - rate): dropout of an activation [batch, ...], or of its gradient. y may be x.
  virtual void dropout(const Tensor& x, const Dropout& dropout, const Tensor& y) = 0;

  static std::unique_ptr<ActivationOps> on_cpu(Device& device);
  static std::unique_ptr<ActivationOps> on_cuda(Device& device);
};

}  // namespace ddptrain
