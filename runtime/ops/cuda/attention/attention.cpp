#include "runtime/ops/attention.h"

#include "runtime/ops/cuda/attention/attention_kernels.h"
#include "runtime/ops/cuda/attention/attention_plans.h"
#include "runtime/ops/cuda/cuda_ops.h"

namespace ddptrain {

namespace {

/// Shapes that cuDNN computes well. Before version 9.15.1 other lengths are wrong when a captured graph is replayed.
bool suits_cudnn(const AttentionShape& shape, DType dtype) {
  return dtype == DType::bf16 && shape.sequence % 128 == 0 && shape.head_size % 8 == 0 && shape.head_size <= 256;
}

class CudaAttention final : public AttentionOps, CudaOps {
 public:
  using CudaOps::CudaOps;

  void attention(const Tensor& qkv, std::int64_t heads, const Tensor& out, const Tensor& statistics) override {
    const AttentionShape shape = check_attention("attention", qkv, heads, out, statistics, {}, {}, dtype());
    if (qkv.size() == 0) return;
    const cuda::AttentionTensors tensors{.qkv = qkv.data, .out = out.data, .statistics = statistics.as<float>()};
    if (suits_cudnn(shape, dtype()) && plans().forward(shape, tensors)) return;
    if (dtype() == DType::bf16 && cuda::suits_mma_attention(shape, tensors)) {
      cuda::mma_attention(shape, tensors, stream());
      return;
    }
    cuda::plain_attention(shape, tensors, dtype(), stream());
  }

  void attention_backward(const Tensor& qkv, std::int64_t heads, const Tensor& out, const Tensor& statistics,
                          const Tensor& d_output, const Tensor& dqkv) override {
    const AttentionShape shape =
        check_attention("attention_backward", qkv, heads, out, statistics, d_output, dqkv, dtype());
    if (qkv.size() == 0) return;
    const cuda::AttentionTensors tensors{qkv.data, out.data, statistics.as<float>(), d_output.data, dqkv.data};
    if (fills_gpu_by_heads(shape) && dtype() == DType::bf16 && cuda::suits_wgmma_attention_backward(shape, tensors)) {
      void* workspace =
          scratch().reserve(cuda::wgmma_attention_backward_workspace(shape, device_.multiprocessors()), stream());
      cuda::wgmma_attention_backward(shape, tensors, workspace, multiprocessors(), stream());
      return;
    }
    if (suits_cudnn(shape, dtype()) && plans().backward(shape, tensors)) return;
    auto* deltas = scratch().reserve_elements<float>(static_cast<std::size_t>(statistics.size()), stream());
    cuda::attention_deltas(shape, tensors, dtype(), deltas, stream());
    if (dtype() == DType::bf16 && cuda::suits_mma_attention(shape, tensors)) {
      cuda::mma_attention_backward(shape, tensors, deltas, stream());
      return;
    }
    cuda::plain_attention_backward(shape, tensors, dtype(), deltas, stream());
  }

 private:
  bool fills_gpu_by_heads(const AttentionShape& shape) const {
    return shape.batch * shape.heads >= device_.multiprocessors();
  }

  /// Made by the first operation that needs cuDNN.
  cuda::AttentionPlans& plans() {
    TunedChoices* choices = device_.options().tune ? &device_.get<TunedChoices>() : nullptr;
    if (!plans_) plans_ = std::make_unique<cuda::AttentionPlans>(stream(), scratch(), choices);
    return *plans_;
  }

  std::unique_ptr<cuda::AttentionPlans> plans_;
};

}  // namespace

std::unique_ptr<AttentionOps> AttentionOps::on_cuda(Device& device) { return std::make_unique<CudaAttention>(device); }

}  // namespace ddptrain
