#pragma once

#include "runtime/ops/family.h"

namespace ddptrain {

/// Gated activations.
class GatedOps : public Family<GatedOps> {
 public:
  /// y [n, hidden] = silu(gate) * up, with pre [n, 2 hidden] = gate | up and silu(x) = x / (1 + exp(-x)) (SwiGLU:
  /// Shazeer, "GLU variants improve transformer", arXiv:2002.05202). y may be e4m3.
  virtual void swiglu(const Tensor& pre, const Tensor& y) = 0;
  /// dpre [n, 2 hidden], which may not be the memory of dy. It may be e5m2; hidden is then a multiple of 8. If y has
  /// data, it gets swiglu() of pre again, bit by bit.
  virtual void swiglu_backward(const Tensor& pre, const Tensor& dy, const Tensor& dpre, const Tensor& y) = 0;

  static std::unique_ptr<GatedOps> on_cpu(Device& device);
  static std::unique_ptr<GatedOps> on_cuda(Device& device);
};

}  // namespace ddptrain
