#pragma once

#include <memory>

#include "runtime/ops/cuda/attention/attention_plans.h"
#include "runtime/ops/cuda/cuda_ops.h"

namespace ddptrain {

/// Self-attention by the implementation that suits a shape: cuDNN or custom kernels.
class CudaSelfAttention : protected CudaOps {
 public:
  using CudaOps::CudaOps;

 protected:
  void forward(const AttentionShape& shape, const cuda::AttentionTensors& tensors);
  void backward(const AttentionShape& shape, const cuda::AttentionTensors& tensors);

 private:
  bool fills_gpu_by_heads(const AttentionShape& shape) const {
    return shape.batch * shape.heads >= device_.multiprocessors();
  }
  /// Made by the first operation that needs cuDNN.
  cuda::AttentionPlans& plans();

  std::unique_ptr<cuda::AttentionPlans> plans_;
};

}  // namespace ddptrain
