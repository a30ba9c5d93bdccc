#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/core/step.h"
#include "runtime/core/tensor.h"
#include "runtime/device/device.h"
#include "runtime/ops/image_batch.h"

namespace ddptrain {

/// The network of models/cnn/cnn.h: two valid 3x3 convolutions, 2x2 max-pool, two linear layers.
struct CnnShape {
  std::int64_t height = 28;
  std::int64_t width = 28;
  std::int64_t conv1 = 32;
  std::int64_t conv2 = 64;
  std::int64_t hidden = 128;
  std::int64_t classes = 10;

  std::int64_t pooled_height() const { return (height - 4) / 2; }
  std::int64_t pooled_width() const { return (width - 4) / 2; }
  std::int64_t features() const { return pooled_height() * pooled_width() * conv2; }
  bool operator==(const CnnShape&) const = default;
};

/// Views of the parameters or of their gradients.
struct CnnTensors {
  Tensor conv1_weight;  ///< [conv1, 3, 3, 1]
  Tensor conv1_bias;
  Tensor conv2_weight;  ///< [conv2, 3, 3, conv1]
  Tensor conv2_bias;
  Tensor fc1_weight;  ///< [hidden, features]; features in the order [height, width, channel]
  Tensor fc1_bias;
  Tensor fc2_weight;  ///< [classes, hidden]
  Tensor fc2_bias;
};

/// Forward and backward of the CNN in a few fused kernels: what the primitive operations compute, up to rounding,
/// with intermediates kept on chip. Queued on the compute stream; deterministic.
class CnnKernels {
 public:
  virtual ~CnnKernels() = default;
  virtual std::size_t memory_bytes() const = 0;

  /// Adds loss and hits of the batch to *sums; with `gradient_scale` not 0 the backward half must follow, and *sums
  /// are complete only then. `pool_dropout` and `hidden_dropout` as for the primitive operations.
  virtual void forward(const ImageBatch& batch, const CnnTensors& weights, const Dropout& pool_dropout,
                       const Dropout& hidden_dropout, float gradient_scale, MetricSums* sums) = 0;
  /// fc1_weight's gradient is complete (and its weight no longer read) when this returns, in stream order.
  virtual void backward_hidden(const CnnTensors& weights, const CnnTensors& gradients, bool accumulate) = 0;
  /// All others.
  virtual void backward_rest(const CnnTensors& weights, const CnnTensors& gradients, bool accumulate) = 0;
};

/// Whether GPUs have such kernels for this shape and precision.
inline bool has_fused_kernels(const CnnShape& shape, Precision precision) {
  return shape == CnnShape{} && precision == Precision::bf16;
}

/// Null if this device, precision or shape has none.
std::unique_ptr<CnnKernels> make_cnn_kernels(Device& device, const CnnShape& shape, std::int64_t max_batch);

}  // namespace ddptrain
