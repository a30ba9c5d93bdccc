#pragma once

#include "runtime/device/cuda/cuda_device.h"
#include "runtime/ops/expect_tensor.h"

namespace ddptrain {

/// What the families share on GPUs. An operation of a new size may allocate; so everything that is captured in a graph
/// must have run once before.
class CudaOps {
 public:
  explicit CudaOps(Device& device) : device_(dynamic_cast<CudaDevice&>(device)) {}

 protected:
  DType dtype() const { return device_.dtype(); }
  cudaStream_t stream() const { return device_.stream(); }
  cuda::Scratch& scratch() const { return device_.scratch(); }
  int multiprocessors() const { return device_.compute_multiprocessors(); }
  /// As expect_tensor, for the gradient of a parameter: dtype() or f32.
  void expect_gradient(const Tensor& gradient, const char* what, const Shape& shape) const {
    expect_tensor(gradient, what, gradient.dtype == DType::f32 ? DType::f32 : dtype(), shape);
  }

  CudaDevice& device_;
};

}  // namespace ddptrain
