// The fused CNN kernels against the primitive operations on the CPU.

#include "models/cnn.h"
#include "tests/backend/model_run.h"

namespace ddptrain::testing {
namespace {

constexpr double kTolerance = 2e-2;  // activations are rounded to 8 bits of mantissa between layers
constexpr std::int64_t kMaxBatch = 300;
constexpr std::uint32_t kFirst = 37;

class CnnKernelsTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    cuda_ = make_cuda_backend({Precision::bf16}, 0);
    if (!cuda_->make_cnn_kernels(CnnShape{}, kMaxBatch))
      GTEST_SKIP() << "no fused kernels for " << cuda_->device_name();
    cpu_ = make_cpu_backend({Precision::fp32});
    const ModelOptions options{kMaxBatch, 4711, GetParam()};
    fused_ = std::make_unique<ModelRun>(*cuda_, DType::bf16, make_cnn(*cuda_, options));
    reference_ = std::make_unique<ModelRun>(*cpu_, DType::bf16, make_cnn(*cpu_, options));
  }

  static ImageBatch batch(ModelRun& run, std::int64_t count) {
    return make_batch(run.bench(), count, 28, 28, 10, kFirst);
  }

  std::unique_ptr<Backend> cuda_, cpu_;
  std::unique_ptr<ModelRun> fused_, reference_;
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
    const ImageBatch on_cpu = batch(*reference_, count);
    for (const bool accumulate : {false, true}) {
      expect_same_sums(fused_->forward(on_gpu, scale), reference_->forward(on_cpu, scale));
      const auto gradients = fused_->backward(accumulate);
      for (const auto& [name, expected] : reference_->backward(accumulate)) {
        EXPECT_LE(relative_error(gradients.at(name), expected), kTolerance)
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
  const double loss = fused_->forward(on_gpu, 0.01f).loss;
  const auto gradients = fused_->backward(false);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(fused_->forward(on_gpu, 0.01f).loss, loss);
    EXPECT_EQ(fused_->backward(false), gradients);
  }
}

INSTANTIATE_TEST_SUITE_P(Dropout, CnnKernelsTest, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "on" : "off"; });

}  // namespace
}  // namespace ddptrain::testing
