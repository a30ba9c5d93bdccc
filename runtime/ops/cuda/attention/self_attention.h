#pragma once

#include <memory>

#include "runtime/ops/attention/attention_plan.h"
#include "runtime/ops/cuda/attention/attention_plans.h"
#include "runtime/ops/cuda/cuda_ops.h"

namespace ddptrain {

/// Self-attention by the implementation that suits a shape: cuDNN or custom kernels.
class CudaSelfAttention : protected CudaOps {
 public:
  explicit CudaSelfAttention(Device& device);

 protected:
  void forward(const AttentionShape& shape, const cuda::AttentionTensors& tensors);
  void backward(const AttentionShape& shape, const cuda::AttentionTensors& tensors);

 private:
  /// Made by the first operation that needs cuDNN.
  cuda::AttentionPlans& plans();

  std::unique_ptr<cuda::AttentionPlans> plans_;
  AttentionBackwardPlans backward_plans_;  ///< What cuDNN computes is in plans_, too.
};

}  // namespace ddptrain
