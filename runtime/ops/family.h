#pragma once

#include <memory>

#include "runtime/core/step.h"
#include "runtime/core/tensor.h"
#include "runtime/device/device.h"

namespace ddptrain {

/// Base of every family of operations. A device has one object of each, device.get<LinearOps>() and the like, which
/// `Ops::on_cpu` or `Ops::on_cuda` makes. on_cpu is defined in cpu/<family>.cpp. on_cuda is defined twice: in a source
/// of the family in cuda/ or below it, and in cuda/no_cuda.cpp for builds without CUDA.
///
/// Contract of every operation: tensors are row-major views on this device with the element type
/// compute_dtype(precision()) unless said otherwise; shapes are checked and a mismatch throws Error; work is queued on
/// compute_stream() (CPU: done on return) and is deterministic. Gradients of parameters are written (`accumulate`
/// false) or added to what is there (true). Image tensors are [batch, height, width, channels]; convolution weights
/// [out, kernel, kernel, in]; linear weights [out, in]. Activations of transformers are [batch, sequence, width] (or
/// flattened to rows, where it makes no difference); `statistics` are f32 (f64 for fp64), and gradients of their
/// parameters may be f32 where weights are bf16.
template <class Ops>
class Family {
 public:
  virtual ~Family() = default;

  /// For Device::get.
  static std::unique_ptr<Ops> make(Device& device) {
    return device.kind() == DeviceKind::cuda ? Ops::on_cuda(device) : Ops::on_cpu(device);
  }
};

}  // namespace ddptrain
