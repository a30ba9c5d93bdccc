#pragma once

#include "runtime/ops/family.h"

namespace ddptrain {

/// The order in memory in which a convolution computes: channels last (NHWC) or channels before pixels (NCHW).
enum class MemoryFormat : std::uint8_t {
  automatic,  ///< NHWC; NCHW if the library has no NHWC algorithm for a shape.
  nhwc,
  nchw,
};

/// Convolutions. Tensors are NHWC.
class ConvolutionOps : public Family<ConvolutionOps> {
 public:
  /// For all later calls. A GPU copies tensors to the other format and back around each convolution. Only GPUs have a
  /// choice.
  virtual void use(MemoryFormat /*format*/) {}
  /// y = x * w (valid, stride 1) + bias, then ReLU; bias and ReLU only where `bias` has data.
  virtual void conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) = 0;
  /// dweight from x and dy; dx if it has data.
  virtual void conv2d_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx,
                               const Tensor& dweight, bool accumulate) = 0;

  static std::unique_ptr<ConvolutionOps> on_cpu(Device& device);
  static std::unique_ptr<ConvolutionOps> on_cuda(Device& device);
};

}  // namespace ddptrain
