#pragma once

#include <cstdint>
#include <memory>

#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/device/device.h"
#include "runtime/ops/shapes.h"

namespace ddptrain::cuda {

enum class ConvKind : std::uint8_t { forward, forward_bias_relu, data_gradient, weight_gradient };

/// The tensors of a convolution; for the gradients x, w and y stand for dx, dw and dy when these are computed or
/// given.
struct ConvTensors {
  void* x = nullptr;     ///< [batch, height, width, in]
  void* w = nullptr;     ///< [out, kernel, kernel, in]
  void* bias = nullptr;  ///< [out], forward_bias_relu only
  void* y = nullptr;     ///< [batch, out_height, out_width, out]
};

/// Convolutions by cuDNN, planned when a shape is first seen; sums are kept in f32, and f32 stays clear of tensor cores
/// unless the precision is tf32. Tensors are NHWC. For MemoryFormat::nchw they are copied to that layout and back
/// around cuDNN's kernels, so that these can be measured there; so they are where cuDNN has no plan for NHWC, and with
/// channels padded to a multiple of eight if it has none for their number.
class ConvPlans {
 public:
  ConvPlans(Precision precision, MemoryFormat format, cudaStream_t stream);  ///< Not while `stream` is being captured.
  ~ConvPlans();

  /// Whether cuDNN can do bias and ReLU within the convolution of this shape.
  bool fuses_bias_relu(const ConvShape& shape);
  /// `accumulate`: the result is added (weight_gradient only).
  void run(ConvKind kind, const ConvShape& shape, const ConvTensors& tensors, bool accumulate);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddptrain::cuda
