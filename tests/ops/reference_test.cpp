// Operations against the definition: plain loops, or values worked out by hand.

#include "runtime/ops/activation.h"
#include "runtime/ops/convolution.h"
#include "runtime/ops/gather.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/loss.h"
#include "runtime/ops/pool.h"
#include "tests/ops/bench.h"

namespace ddptrain::tests {
namespace {

class ReferenceTest : public ::testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override {
    if (GetParam().kind == DeviceKind::cuda && cuda_device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    device_ = make_device(GetParam());
    bench_ = std::make_unique<Bench>(*device_);
  }
  void expect_close(const Tensor& out, const Values& expected) {
    EXPECT_LE(relative_error(bench_->take(out), expected), GetParam().tolerance);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Bench> bench_;
};

TEST_P(ReferenceTest, Conv2dIsACorrelationWithBiasAndRelu) {
  constexpr int kBatch = 2, kHeight = 6, kWidth = 5, kIn = 8, kOut = 16, kKernel = 3;
  const Values x = bench_->rounded(random_values(kBatch * kHeight * kWidth * kIn, 1));
  const Values w = bench_->rounded(random_values(kOut * kKernel * kKernel * kIn, 2));
  const Values b = bench_->rounded(random_values(kOut, 3));
  Values expected;
  for (int n = 0; n < kBatch; ++n) {
    for (int oy = 0; oy <= kHeight - kKernel; ++oy) {
      for (int ox = 0; ox <= kWidth - kKernel; ++ox) {
        for (int o = 0; o < kOut; ++o) {
          double sum = b[static_cast<std::size_t>(o)];
          for (int i = 0; i < kKernel * kKernel * kIn; ++i) {
            const int ky = i / (kKernel * kIn);
            const int kx = i / kIn % kKernel;
            const int at = ((n * kHeight + oy + ky) * kWidth + ox + kx) * kIn + i % kIn;
            sum += x[static_cast<std::size_t>(at)] * w[static_cast<std::size_t>(o * kKernel * kKernel * kIn + i)];
          }
          expected.push_back(std::max(sum, 0.0));
        }
      }
    }
  }
  const Tensor y = bench_->poisoned({kBatch, kHeight - 2, kWidth - 2, kOut});
  device_->get<ConvolutionOps>().conv2d(bench_->put(x, {kBatch, kHeight, kWidth, kIn}),
                                        bench_->put(w, {kOut, kKernel, kKernel, kIn}), bench_->put(b, {kOut}), y);
  expect_close(y, expected);
}

TEST_P(ReferenceTest, PoolTakesTheFirstLargest) {
  // One channel; windows: clear winner, tie of all, tie of the last two, nothing above zero (with bias -0.5).
  const Values x = {1, 4, 2, 2, 0, 1, 0.25f, -1,  //
                    2, 3, 2, 2, 3, 3, 0.5f,  0};
  Dropout none;
  none.step = {bench_->put_object(StepState{}), 0};
  const Tensor out = bench_->poisoned({1, 1, 4, 1});
  const Tensor winner = bench_->poisoned_bytes({1, 1, 4, 1});
  device_->get<PoolOps>().bias_relu_pool_dropout(bench_->put(x, {1, 2, 8, 1}), bench_->put({-0.5}, {1}), none, out,
                                                 winner);
  EXPECT_EQ(bench_->take(out), (Values{3.5, 1.5, 2.5, 0}));
  EXPECT_EQ(bench_->take(winner), (Values{1, 0, 2, 4}));
  const Tensor dx = bench_->poisoned({1, 2, 8, 1});
  const Tensor dbias = bench_->put({10}, {1});
  device_->get<PoolOps>().bias_relu_pool_dropout_backward(bench_->put({1, 2, 4, 8}, {1, 1, 4, 1}), winner, none, dx,
                                                          dbias, true);
  EXPECT_EQ(bench_->take(dx), (Values{0, 1, 2, 0, 0, 0, 0, 0,  //
                                      0, 0, 0, 0, 4, 0, 0, 0}));
  EXPECT_EQ(bench_->take(dbias), (Values{17}));
}

TEST_P(ReferenceTest, DroppedFeaturesHaveNoWinner) {
  const StepState state{3};
  Dropout dropout{0.5f, 5, 1, 0, {bench_->put_object(state), 0}};
  const Shape shape{2, 2, 3, 16};
  const Tensor winner = bench_->poisoned_bytes(shape);
  device_->get<PoolOps>().bias_relu_pool_dropout(bench_->put(Values(2 * 4 * 6 * 16, 1.0), {2, 4, 6, 16}),
                                                 bench_->put(Values(16, 0.0), {16}), dropout, bench_->poisoned(shape),
                                                 winner);
  const Values winners = bench_->take(winner);
  dropout.step.state = &state;
  for (std::uint32_t i = 0; i < winners.size(); ++i) {
    EXPECT_EQ(winners[i], dropout.keeps(i % 96, i / 96) ? 0.0 : 4.0) << i;
  }
}

TEST_P(ReferenceTest, LinearMultipliesByTheTranspose) {
  const Tensor y = bench_->poisoned({2, 3});
  device_->get<LinearOps>().linear(bench_->put({1, 2, 3, 4}, {2, 2}), bench_->put({1, 0, 0, 1, 2, -1}, {3, 2}),
                                   bench_->put({0.5, 0, 0}, {3}), y);
  EXPECT_EQ(bench_->take(y), (Values{1.5, 2, 0, 3.5, 4, 2}));
}

TEST_P(ReferenceTest, CrossEntropyCountsLossAndHits) {
  ImageBatch batch;
  batch.images = bench_->put_bytes({0, 0}, {2, 1, 1});
  batch.labels = bench_->put_bytes({1, 0}, {2});
  batch.order = {0, 2, 1, 2, 0, false};
  batch.step = {bench_->put_object(StepState{}), 0};
  batch.count = 2;
  const Tensor dlogits = bench_->poisoned({2, 2});
  MetricSums* sums = bench_->put_object(MetricSums{});
  device_->get<LossOps>().softmax_cross_entropy(bench_->put({0, 2, 0, 2}, {2, 2}), batch, 2.0f, dlogits, sums);
  const double small = 1.0 / (1.0 + std::exp(2.0));  // softmax of the smaller logit
  expect_close(dlogits, {2 * small, -2 * small, 2 * small - 2, 2 - 2 * small});
  const MetricSums result = bench_->take_object(sums);
  EXPECT_NEAR(result.loss, -std::log(1 - small) - std::log(small), 1e-5);
  EXPECT_EQ(result.correct, 1u);
  EXPECT_EQ(result.samples, 2u);
}

TEST_P(ReferenceTest, GatherFollowsTheSampleOrder) {
  const ImageBatch batch = make_batch(*bench_, 7, 3, 4, 10, 2);
  const Tensor out = bench_->poisoned({7, 3, 4, 1});
  device_->get<GatherOps>().gather_images(batch, out);
  const Values pixels = bench_->take(batch.images);
  const std::uint64_t step = bench_->take_object(batch.step.state).step + batch.step.offset;
  Values expected;
  for (std::uint32_t row = 0; row < 7; ++row) {
    const std::size_t sample = sample_index(batch.order, step, row);
    for (std::size_t i = 0; i < 12; ++i) expected.push_back(pixels[sample * 12 + i] / 255.0);
  }
  expect_close(out, expected);
}

TEST_P(ReferenceTest, ReluBackwardScalesWhereOutputIsPositive) {
  const Tensor dy = bench_->put({1, 2, 4, 8, 16, 32}, {3, 2});
  const Tensor dbias = bench_->poisoned({2});
  device_->get<ActivationOps>().bias_relu_backward(bench_->put({1, 0, 0.5, 3, 0, 0}, {3, 2}), dy, 2.0f, dbias, false);
  EXPECT_EQ(bench_->take(dy), (Values{2, 0, 8, 16, 0, 0}));
  EXPECT_EQ(bench_->take(dbias), (Values{10, 16}));
}

INSTANTIATE_TEST_SUITE_P(Devices, ReferenceTest, ::testing::ValuesIn(device_cases()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace ddptrain::tests
