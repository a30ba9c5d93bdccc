#pragma once

#include "runtime/ops/family.h"

namespace ddptrain {

/// Batches from a resident data set.
class GatherOps : public Family<GatherOps> {
 public:
  /// out [count, height, width, 1] = pixels of the batch / 255.
  virtual void gather_images(const ImageBatch& batch, const Tensor& out) = 0;

  static std::unique_ptr<GatherOps> on_cpu(Device& device);
  static std::unique_ptr<GatherOps> on_cuda(Device& device);
};

}  // namespace ddptrain
