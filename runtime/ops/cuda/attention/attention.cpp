#include "runtime/ops/attention.h"

#include "runtime/ops/cuda/attention/self_attention.h"

namespace ddptrain {

namespace {

class CudaAttention final : public AttentionOps, CudaSelfAttention {
 public:
  using CudaSelfAttention::CudaSelfAttention;

  void attention(const Tensor& qkv, std::int64_t heads, const Tensor& out, const Tensor& statistics) override {
    const AttentionShape shape = check_attention("attention", qkv, heads, out, statistics, {}, {}, dtype());
    if (qkv.size() == 0) return;
    forward(shape, {.qkv = qkv.data, .out = out.data, .statistics = statistics.as<float>()});
  }

  void attention_backward(const Tensor& qkv, std::int64_t heads, const Tensor& out, const Tensor& statistics,
                          const Tensor& d_output, const Tensor& dqkv) override {
    const AttentionShape shape =
        check_attention("attention_backward", qkv, heads, out, statistics, d_output, dqkv, dtype());
    if (qkv.size() == 0) return;
    backward(shape, {qkv.data, out.data, statistics.as<float>(), d_output.data, dqkv.data});
  }
};

}  // namespace

std::unique_ptr<AttentionOps> AttentionOps::on_cuda(Device& device) { return std::make_unique<CudaAttention>(device); }

}  // namespace ddptrain
