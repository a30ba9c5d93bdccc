#include <gtest/gtest.h>

#include <iostream>

#include "runtime/ops/attention/attention_plan.h"
#include "runtime/ops/cuda/attention/attention_kernels.h"
#include "runtime/ops/grouped_attention.h"
#include "tests/ops/cuda/warpgroup_test.h"

namespace ddptrain::tests {
namespace {

constexpr int kAll = 132;  // multiprocessors

class AttentionWgmmaTest : public WarpgroupTest<AttentionShape> {
 protected:
  void prepare() override {
    const std::int64_t rows = s_.batch * s_.sequence;
    qkv_ = bench_->put(random_values(rows * s_.columns(), 1, -2.0, 2.0), {s_.batch, s_.sequence, s_.columns()});
    dout_ = bench_->put(random_values(rows * s_.width(), 2), {s_.batch, s_.sequence, s_.width()});
    out_ = bench_->poisoned(dout_.shape);
    statistics_ = floats();
    const GroupedHeads heads{s_.heads, s_.key_heads, s_.head_size};
    device_->get<GroupedAttentionOps>().attention(qkv_, heads, out_, statistics_);
  }

  /// One per head and query.
  Tensor floats() {
    return bench_->put_master(Values(static_cast<std::size_t>(s_.batch * s_.heads * s_.sequence)),
                              {s_.batch, s_.heads, s_.sequence});
  }
  void* poisoned(std::size_t bytes) { return bench_->poisoned_bytes({static_cast<std::int64_t>(bytes)}).data; }
  cuda::AttentionTensors tensors(const Tensor& dqkv) const {
    return {qkv_.data, out_.data, statistics_.as<float>(), dout_.data, dqkv.data};
  }

  /// Output and statistics.
  struct Forward {
    Values out, statistics;
  };
  /// attention(tensors)
  template <class Attention>
  Forward forward(const Attention& attention) {
    const Tensor out = bench_->poisoned(dout_.shape), statistics = floats();
    attention(cuda::AttentionTensors{.qkv = qkv_.data, .out = out.data, .statistics = statistics.as<float>()});
    return {bench_->take(out), bench_->take(statistics)};
  }
  Forward forward_by_plain_kernels() {
    return forward([&](const auto& t) { cuda::plain_attention(s_, t, DType::bf16, stream()); });
  }
  Forward forward_by_warpgroups(int free) {
    return forward([&](const auto& t) {
      EXPECT_TRUE(cuda::suits_warpgroups(t));
      cuda::wgmma_128_attention(s_, t, free, stream());
    });
  }

  Values by_plain_kernels() {
    const Tensor dqkv = bench_->poisoned(qkv_.shape), deltas = floats();
    cuda::attention_deltas(s_, tensors(dqkv), DType::bf16, deltas.as<float>(), stream());
    cuda::plain_attention_backward(s_, tensors(dqkv), DType::bf16, deltas.as<float>(), stream());
    return bench_->take(dqkv);
  }
  /// On a GPU of 132 multiprocessors, of which some may work.
  Values by_warpgroups(int free) {
    const Tensor dqkv = bench_->poisoned(qkv_.shape);
    EXPECT_TRUE(cuda::suits_warpgroups(tensors(dqkv)));
    if (s_.head_size == 128) {
      const AttentionBackwardPlan plan = plan_for_heads_of_128(s_, kAll);
      cuda::wgmma_128_attention_backward(s_, tensors(dqkv), plan.parts, poisoned(plan.scratch_bytes), free, stream());
    } else {
      const AttentionBackwardPlan plan = plan_for_heads_of_64(s_, free);
      cuda::wgmma_attention_backward(s_, tensors(dqkv), poisoned(plan.scratch_bytes), free, stream());
    }
    return bench_->take(dqkv);
  }

  AttentionShape s_ = GetParam();
  Tensor qkv_, dout_, out_, statistics_;
};

TEST_P(AttentionWgmmaTest, BackwardEqualsThatOfThePlainKernels) {
  EXPECT_LT(relative_error(by_warpgroups(kAll), by_plain_kernels()), 1e-2);
}

TEST_P(AttentionWgmmaTest, ForwardEqualsThatOfThePlainKernels) {
  if (s_.head_size != 128) GTEST_SKIP() << "cuDNN computes it";
  const Forward expected = forward_by_plain_kernels();
  const Forward computed = forward_by_warpgroups(kAll);
  EXPECT_LT(relative_error(computed.out, expected.out), 5e-3);
  EXPECT_LT(relative_error(computed.statistics, expected.statistics), 1e-5);
}

TEST_P(AttentionWgmmaTest, ForwardGivesTheSameBitsOnFewerMultiprocessors) {
  if (s_.head_size != 128) GTEST_SKIP() << "cuDNN computes it";
  ASSERT_EQ(plan_attention_forward(s_, DType::bf16, *device_->gpu()), AttentionKernels::heads_of_128);
  const Forward first{bench_->take(out_), bench_->take(statistics_)};  // of the operation
  for (const int free : {kAll, 5}) {
    const Forward again = forward_by_warpgroups(free);
    EXPECT_EQ(first.out, again.out) << free;
    EXPECT_EQ(first.statistics, again.statistics) << free;
  }
}

TEST_P(AttentionWgmmaTest, BackwardGivesTheSameBitsOnFewerMultiprocessors) {
  const Values first = by_warpgroups(kAll);
  EXPECT_EQ(first, by_warpgroups(kAll));
  EXPECT_EQ(first, by_warpgroups(5));
}

/// --dry-run predicts the memory of attention by the same plan.
TEST(AttentionScratchTest, IsWhatThePlanSays) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
  if (!cuda::multiplies_by_warpgroups()) GTEST_SKIP() << "this GPU has no warpgroup instructions";
  for (const AttentionShape& s : {AttentionShape{10, 14, 2, 1024, 64}, AttentionShape{16, 12, 2, 1024, 128},
                                  AttentionShape{2, 12, 12, 2048, 64}, AttentionShape{1, 8, 2, 2048, 64}}) {
    const std::unique_ptr<Device> device = make_device({"cuda_bf16", DeviceKind::cuda, Precision::bf16});
    Bench bench(*device);
    const GroupedHeads heads{s.heads, s.key_heads, s.head_size};
    const Tensor qkv =
        bench.put(random_values(s.batch * s.sequence * s.columns(), 1), {s.batch, s.sequence, s.columns()});
    const Tensor out = bench.poisoned({s.batch, s.sequence, s.width()});
    const Tensor statistics = bench.put_master(Values(static_cast<std::size_t>(s.batch * s.heads * s.sequence)),
                                               {s.batch, s.heads, s.sequence});
    device->get<GroupedAttentionOps>().attention_backward(qkv, heads, out, statistics, out, bench.poisoned(qkv.shape));
    const AttentionBackwardPlan plan = plan_attention_backward(s, DType::bf16, *device->gpu());
    const double bytes = static_cast<double>(dynamic_cast<CudaDevice&>(*device).scratch().bytes());
    const auto planned = static_cast<double>(plan.scratch_bytes);
    if (plan.kernels == AttentionKernels::cudnn) {  // another version may take more
      std::cout << s.batch << " x " << s.sequence << ": cuDNN takes " << bytes << " bytes, planned " << planned << "\n";
    } else {
      EXPECT_EQ(bytes, planned) << s.batch << " x " << s.sequence;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionWgmmaTest,
                         ::testing::Values(AttentionShape{1, 1, 1, 128, 64}, AttentionShape{3, 5, 5, 256, 64},
                                           AttentionShape{50, 3, 3, 384, 64}, AttentionShape{2, 3, 3, 1024, 64},
                                           AttentionShape{1, 2, 2, 2048, 64}, AttentionShape{3, 6, 2, 384, 64},
                                           AttentionShape{2, 14, 2, 1024, 64}, AttentionShape{1, 1, 1, 128, 128},
                                           AttentionShape{3, 5, 5, 256, 128}, AttentionShape{50, 3, 3, 384, 128},
                                           AttentionShape{1, 2, 2, 2048, 128}, AttentionShape{3, 6, 2, 384, 128},
                                           AttentionShape{16, 12, 2, 512, 128}, AttentionShape{4, 28, 4, 1024, 128}),
                         [](const auto& info) {
                           const AttentionShape& s = info.param;
                           return std::to_string(s.batch) + "x" + std::to_string(s.heads) + "with" +
                                  std::to_string(s.key_heads) + "x" + std::to_string(s.sequence) + "x" +
                                  std::to_string(s.head_size);
                         });

}  // namespace
}  // namespace ddptrain::tests
