#pragma once

#include "runtime/device/cuda/cuda_device.h"
#include "runtime/ops/shapes.h"

namespace ddptrain {

/// Code that all GPU operations share. An operation of a new size may allocate; so everything that is captured in a
/// graph must have run once before.
class CudaOps {
 public:
  explicit CudaOps(Device& device) : device_(dynamic_cast<CudaDevice&>(device)) {}

 protected:
  DType dtype() const { return device_.dtype(); }
  cudaStream_t stream() const { return device_.stream(); }
  cuda::Scratch& scratch() const { return device_.scratch(); }
  int multiprocessors() const { return device_.compute_multiprocessors(); }
  int resident_multiprocessors() const { return device_.resident_multiprocessors(); }

  CudaDevice& device_;
};

}  // namespace ddptrain
