// The fused CNN kernels against the primitive operations on the CPU in fp32. Rounding activations to bf16 moves winners
// of pooling and signs of ReLU, so bf16 gradients are a few per cent away from fp32's; the fused kernels must be
// about as near as the primitive operations in bf16.

#include "models/cnn/cnn.h"
#include "tests/ops/model_run.h"

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
    const ModelOptions options{kMaxBatch, 4711, GetParam()};
    fused_ = std::make_unique<ModelRun>(*cuda_, DType::bf16, make_cnn(*cuda_, options));
    plain_device_ = make_cuda_device({.precision = Precision::bf16, .fused = false}, 0);
    plain_ = std::make_unique<ModelRun>(*plain_device_, DType::bf16, make_cnn(*plain_device_, options));
    reference_ = std::make_unique<ModelRun>(*cpu_, DType::bf16, make_cnn(*cpu_, options));
  }

  static ImageBatch batch(ModelRun& run, std::int64_t count) {
    return make_batch(run.bench(), count, 28, 28, 10, kFirst);
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
    const ImageBatch on_gpu = batch(*fused_, count);
    const ImageBatch plain_on_gpu = batch(*plain_, count);
    const ImageBatch on_cpu = batch(*reference_, count);
    for (const bool accumulate : {false, true}) {
      fused_->forward(on_gpu, scale);
      plain_->forward(plain_on_gpu, scale);
      reference_->forward(on_cpu, scale);
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
    expect_same_sums(fused_->evaluate(batch(*fused_, count)), reference_->evaluate(batch(*reference_, count)));
  }
}

TEST_P(CnnKernelsTest, RepeatedRunsGiveTheSameBits) {
  const ImageBatch on_gpu = batch(*fused_, 300);
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
