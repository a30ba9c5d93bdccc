#include "runtime/ops/grouped_attention.h"

#include "runtime/ops/cuda/attention/heads/head_kernels.h"
#include "runtime/ops/cuda/attention/self_attention.h"

namespace ddptrain {

namespace {

class CudaGroupedAttention final : public GroupedAttentionOps, CudaSelfAttention {
 public:
  using CudaSelfAttention::CudaSelfAttention;

  void attention(const Tensor& qkv, const GroupedHeads& heads, const Tensor& out, const Tensor& statistics) override {
    const GroupedAttentionShape shape =
        check_grouped_attention("grouped attention", qkv, heads, out, statistics, {}, {}, dtype());
    if (qkv.size() == 0) return;
    forward(shape.attention(), {.qkv = qkv.data, .out = out.data, .statistics = statistics.as<float>()});
  }

  void attention_backward(const Tensor& qkv, const GroupedHeads& heads, const Tensor& out, const Tensor& statistics,
                          const Tensor& d_output, const Tensor& dqkv) override {
    const GroupedAttentionShape shape =
        check_grouped_attention("grouped attention_backward", qkv, heads, out, statistics, d_output, dqkv, dtype());
    if (qkv.size() == 0) return;
    backward(shape.attention(), {qkv.data, out.data, statistics.as<float>(), d_output.data, dqkv.data});
  }

  void rotate(const Tensor& qkv, const GroupedHeads& heads, const Tensor& frequencies,
              const std::int64_t* first_position, Turn turn) override {
    const GroupedAttentionShape shape = check_rotate(qkv, heads, frequencies, dtype());
    if (qkv.size() == 0) return;
    cuda::rotate_heads(shape.attention(), qkv, frequencies.as<const float>(), first_position, turn == Turn::forward,
                       stream());
  }

  void normalise(const Tensor& qkv, const GroupedHeads& heads, const Tensor& query_weight, const Tensor& key_weight,
                 float epsilon, const Tensor& y, const Tensor& statistics) override {
    const GroupedAttentionShape shape =
        check_normalise("normalise", qkv, heads, query_weight, key_weight, y, statistics, dtype());
    if (qkv.size() == 0) return;
    cuda::normalise_heads({shape.attention(), qkv, query_weight, key_weight, statistics.as<float>()}, epsilon, y,
                          stream());
  }

  void normalise_backward(const Tensor& qkv, const GroupedHeads& heads, const Tensor& query_weight,
                          const Tensor& key_weight, const Tensor& statistics, const Tensor& dqkv,
                          const Tensor& dquery_weight, const Tensor& dkey_weight, bool accumulate) override {
    const GroupedAttentionShape shape =
        check_normalise("normalise_backward", qkv, heads, query_weight, key_weight, dqkv, statistics, dtype());
    for (const Tensor& gradient : {dquery_weight, dkey_weight}) {
      expect_gradient("normalise_backward", "the gradient of a weight", gradient, dtype(), {heads.head_size});
    }
    cuda::normalise_heads_backward({shape.attention(), qkv, query_weight, key_weight, statistics.as<float>()}, dqkv,
                                   dquery_weight, dkey_weight, accumulate, scratch(), stream());
  }
};

}  // namespace

std::unique_ptr<GroupedAttentionOps> GroupedAttentionOps::on_cuda(Device& device) {
  return std::make_unique<CudaGroupedAttention>(device);
}

}  // namespace ddptrain
