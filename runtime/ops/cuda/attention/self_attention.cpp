#include "runtime/ops/cuda/attention/self_attention.h"

#include "runtime/ops/cuda/attention/attention_kernels.h"

namespace ddptrain {

namespace {

/// Shapes that cuDNN computes well. Before version 9.15.1 other lengths are wrong when a captured graph is replayed.
bool suits_cudnn(const AttentionShape& shape, DType dtype) {
  return dtype == DType::bf16 && shape.sequence % 128 == 0 && shape.head_size % 8 == 0 && shape.head_size <= 256;
}

}  // namespace

void CudaSelfAttention::forward(const AttentionShape& shape, const cuda::AttentionTensors& tensors) {
  if (suits_cudnn(shape, dtype()) && plans().forward(shape, tensors)) return;
  if (dtype() == DType::bf16 && cuda::suits_mma_attention(shape, tensors)) {
    cuda::mma_attention(shape, tensors, stream());
    return;
  }
  cuda::plain_attention(shape, tensors, dtype(), stream());
}

void CudaSelfAttention::backward(const AttentionShape& shape, const cuda::AttentionTensors& tensors) {
  if (fills_gpu_by_heads(shape) && dtype() == DType::bf16 && cuda::suits_wgmma_attention_backward(shape, tensors)) {
    void* workspace =
        scratch().reserve(cuda::wgmma_attention_backward_workspace(shape, device_.multiprocessors()), stream());
    cuda::wgmma_attention_backward(shape, tensors, workspace, multiprocessors(), stream());
    return;
  }
  const int all = device_.multiprocessors();
  if (dtype() == DType::bf16 && cuda::suits_wgmma_128_attention_backward(shape, tensors, all)) {
    void* workspace = scratch().reserve(cuda::wgmma_128_attention_backward_workspace(shape, all), stream());
    cuda::wgmma_128_attention_backward(shape, tensors, workspace, {.all = all, .free = multiprocessors()}, stream());
    return;
  }
  if (suits_cudnn(shape, dtype()) && plans().backward(shape, tensors)) return;
  if (dtype() == DType::bf16 && cuda::suits_short_attention_backward(shape, tensors)) {
    cuda::short_attention_backward(shape, tensors, stream());
    return;
  }
  const auto rows = static_cast<std::size_t>(shape.batch * shape.heads * shape.sequence);
  auto* deltas = scratch().reserve_elements<float>(rows, stream());
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
