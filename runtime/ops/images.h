#pragma once

#include "runtime/ops/family.h"
#include "runtime/ops/image_batch.h"

namespace ddptrain {

/// Batches from a resident data set, and the max-pool with what comes before and behind it.
class ImageOps : public Family<ImageOps> {
 public:
  /// out [count, height, width, 1] = pixels of the batch / 255.
  virtual void gather_images(const ImageBatch& batch, const Tensor& out) = 0;
  /// out [n, h/2, w/2, c] = dropout(max-pool 2x2(ReLU(x + bias))); features are numbered over [h/2, w/2, c].
  /// winner (u8, shape of out): position (2 dy + dx) of a largest element, 4 if the output is 0.
  virtual void bias_relu_pool_dropout(const Tensor& x, const Tensor& bias, const Dropout& dropout, const Tensor& out,
                                      const Tensor& winner) = 0;
  /// dx (every element is written) and dbias.
  virtual void bias_relu_pool_dropout_backward(const Tensor& d_output, const Tensor& winner, const Dropout& dropout,
                                               const Tensor& dx, const Tensor& dbias, bool accumulate) = 0;

  static std::unique_ptr<ImageOps> on_cpu(Device& device);
  static std::unique_ptr<ImageOps> on_cuda(Device& device);
};

}  // namespace ddptrain
