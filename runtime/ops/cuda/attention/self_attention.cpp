#include "runtime/ops/cuda/attention/self_attention.h"

#include "runtime/ops/cuda/attention/attention_kernels.h"

namespace ddptrain {

CudaSelfAttention::CudaSelfAttention(Device& device)
    : CudaOps(device), backward_plans_([this](const AttentionShape& shape) {
        return plan_attention_backward(shape, dtype(), *device_.gpu());
      }) {}

void CudaSelfAttention::forward(const AttentionShape& shape, const cuda::AttentionTensors& tensors) {
  const AttentionKernels kernels = plan_attention_forward(shape, dtype(), *device_.gpu());
  if (kernels == AttentionKernels::heads_of_128 && cuda::suits_warpgroups(tensors)) {
    cuda::wgmma_128_attention(shape, tensors, resident_multiprocessors(), stream());
    return;
  }
  if (suits_cudnn_attention(shape, dtype()) && plans().forward(shape, tensors)) return;
  if (dtype() == DType::bf16 && cuda::suits_mma_attention(shape, tensors)) {
    cuda::mma_attention(shape, tensors, stream());
    return;
  }
  cuda::plain_attention(shape, tensors, dtype(), stream());
}

void CudaSelfAttention::backward(const AttentionShape& shape, const cuda::AttentionTensors& tensors) {
  const AttentionBackwardPlan& plan = backward_plans_.of(shape);
  const bool by_64 = plan.kernels == AttentionKernels::heads_of_64;
  if ((by_64 || plan.kernels == AttentionKernels::heads_of_128) && cuda::suits_warpgroups(tensors)) {
    void* workspace = scratch().reserve(plan.scratch_bytes, stream());
    if (by_64) {
      cuda::wgmma_attention_backward(shape, tensors, workspace, resident_multiprocessors(), stream());
    } else {
      cuda::wgmma_128_attention_backward(shape, tensors, plan.parts, workspace, resident_multiprocessors(), stream());
    }
    return;
  }
  if (suits_cudnn_attention(shape, dtype()) && plans().backward(shape, tensors)) return;
  if (suits_short_attention(shape, dtype(), *device_.gpu()) && cuda::suits_mma_attention(shape, tensors)) {
    cuda::short_attention_backward(shape, tensors, stream());
    return;
  }
  auto* deltas = static_cast<float*>(scratch().reserve(attention_deltas_bytes(shape), stream()));
  cuda::attention_deltas(shape, tensors, dtype(), deltas, stream());
  if (dtype() == DType::bf16 && cuda::suits_mma_attention(shape, tensors)) {
    cuda::mma_attention_backward(shape, tensors, deltas, stream());
    return;
  }
  cuda::plain_attention_backward(shape, tensors, dtype(), deltas, stream());
}

cuda::AttentionPlans& CudaSelfAttention::plans() {
  TunedChoices* choices = device_.options().tune ? &device_.get<TunedChoices>() : nullptr;
  if (!plans_) plans_ = std::make_unique<cuda::AttentionPlans>(stream(), scratch(), choices);
  return *plans_;
}

}  // namespace ddptrain
