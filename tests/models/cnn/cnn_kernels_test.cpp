// The fused CNN kernels against the primitive operations on the CPU in fp32. Rounding activations to bf16 moves winners
// of pooling and signs of ReLU, so bf16 gradients are a few per cent away from fp32's; the fused kernels must be
// about as near as the primitive operations in bf16.

#include "models/cnn/cnn.h"
#include "tests/models/model_run.h"

namespace ddptrain::testing {
namespace {

constexpr double kTolerance = 2e-2;  // of sums over the batch
constexpr double kGradientTolerance = 0.12;
constexpr std::int64_t kMaxBatch = 300;
constexpr std::uint32_t kFirst = 37;

class CnnKernelsTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    cuda_ = make_cuda_device({Precision::bf16}, 0);
    if (!make_cnn_kernels(*cuda_, CnnShape{}, kMaxBatch)) GTEST_SKIP() << "no fused kernels for " << cuda_->name();
    cpu_ = make_cpu_device({Precision::fp32});
    fused_ = make_run(*cuda_);
    plain_device_ = make_cuda_device({.precision = Precision::bf16, .fused = false}, 0);
    plain_ = make_run(*plain_device_);
    reference_ = make_run(*cpu_);
  }

  static std::unique_ptr<ModelRun> make_run(Device& device) {
    return std::make_unique<ModelRun>(device, DType::bf16, [&](Bench& bench) -> BoundModel {
      const ImageBatch data = make_batch(bench, kMaxBatch, 28, 28, 10, kFirst);
      return {make_cnn(device, {kMaxBatch, 4711, GetParam()}, {data, data}), data};
    });
  }

  std::unique_ptr<Device> cuda_, plain_device_, cpu_;
  std::unique_ptr<ModelRun> fused_, plain_, reference_;
};

void expect_same_sums(const MetricSums& out, const MetricSums& expected) {
  EXPECT_NEAR(out.loss, expected.loss, kTolerance * expected.loss);
  EXPECT_NEAR(static_cast<double>(out.correct), static_cast<double>(expected.correct),
              1.0 + kTolerance * static_cast<double>(expected.samples));
  EXPECT_EQ(out.samples, expected.samples);
}

TEST_P(CnnKernelsTest, ForwardAndBackward) {
  for (const std::int64_t count : {1, 5, 132, 300}) {
    const float scale = 1.0f / static_cast<float>(count);
    for (const bool accumulate : {false, true}) {
      fused_->forward(fused_->slice(count), scale);
      plain_->forward(plain_->slice(count), scale);
      reference_->forward(reference_->slice(count), scale);
      const auto gradients = fused_->backward(accumulate);
      const auto plain = plain_->backward(accumulate);
      const auto reference = reference_->backward(accumulate);
      expect_same_sums(fused_->sums(), reference_->sums());
      for (const auto& [name, expected] : reference) {
        const double error = relative_error(gradients.at(name), expected);
        EXPECT_LE(error, kGradientTolerance) << name;
        EXPECT_LE(error, 2.0 * relative_error(plain.at(name), expected) + 5e-3)
            << name << ", batch " << count << (accumulate ? ", accumulated" : "");
      }
    }
  }
}

TEST_P(CnnKernelsTest, Evaluate) {
  for (const std::int64_t count : {1, 5, 132, 300}) {
    expect_same_sums(fused_->evaluate(fused_->slice(count)), reference_->evaluate(reference_->slice(count)));
  }
}

TEST_P(CnnKernelsTest, RepeatedRunsGiveTheSameBits) {
  const Slice on_gpu = fused_->slice();
  fused_->forward(on_gpu, 0.01f);
  const auto gradients = fused_->backward(false);
  const double loss = fused_->sums().loss;
  EXPECT_GT(loss, 0.0);
  for (int i = 0; i < 3; ++i) {
    fused_->forward(on_gpu, 0.01f);
    EXPECT_EQ(fused_->backward(false), gradients);
    EXPECT_EQ(fused_->sums().loss, loss);
  }
}

INSTANTIATE_TEST_SUITE_P(Dropout, CnnKernelsTest, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "on" : "off"; });

}  // namespace
}  // namespace ddptrain::testing
