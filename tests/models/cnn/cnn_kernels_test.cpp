// The fused CNN kernels against the primitive operations on the CPU in fp32. Rounding activations to bf16 moves winners
// of pooling and signs of ReLU, so bf16 gradients of ordinary inputs are a few per cent away from fp32's: there the
// fused kernels must be about as near as the primitive operations in bf16. Of inputs whose activations are exact in
// bf16, the loss must be that of fp32.

#include <map>

#include "models/cnn/cnn.h"
#include "runtime/core/bf16.h"
#include "runtime/device/cpu/cpu_device.h"
#include "runtime/ops/images.h"
#include "runtime/ops/meta_device.h"
#include "tests/models/model_run.h"

namespace ddptrain::tests {
namespace {

constexpr double kTolerance = 2e-2;  // of sums over the batch
constexpr double kGradientTolerance = 0.12;
constexpr std::int64_t kMaxBatch = 300;
constexpr std::uint32_t kFirst = 37;

/// Where elements are equally large, the fused kernels take the upper one of the left column, then of the right one;
/// the primitive operation on the CPU goes by rows.
class ColumnFirstPool final : public ImageOps {
 public:
  explicit ColumnFirstPool(Device& device) : pool_(ImageOps::on_cpu(device)) {}

  void gather_images(const ImageBatch& batch, const Tensor& out) override { pool_->gather_images(batch, out); }
  void bias_relu_pool_dropout(const Tensor& x, const Tensor& bias, const Dropout& dropout, const Tensor& out,
                              const Tensor& winner) override {
    pool_->bias_relu_pool_dropout(x, bias, dropout, out, winner);
    const std::int64_t height = out.dim(1), width = out.dim(2), channels = out.dim(3);
    for (std::int64_t i = 0; i < winner.size(); ++i) {
      auto& at = winner.as<std::uint8_t>()[i];
      if (at > 3) continue;
      const std::int64_t channel = i % channels, column = i / channels % width, row = i / channels / width % height;
      const std::int64_t image = i / channels / width / height;
      const auto value = [&](int position) {
        const std::int64_t pixel =
            (image * 2 * height + 2 * row + position / 2) * 2 * width + 2 * column + position % 2;
        return x.as<float>()[pixel * channels + channel];
      };
      const float largest = value(at);
      for (const int position : {3, 1, 2, 0})
        at = value(position) == largest ? static_cast<std::uint8_t>(position) : at;
      const float active = largest + bias.as<float>()[channel];
      EXPECT_EQ(to_float(to_bf16(active)), active) << "not exact in bf16";
    }
  }
  void bias_relu_pool_dropout_backward(const Tensor& d_output, const Tensor& winner, const Dropout& dropout,
                                       const Tensor& dx, const Tensor& dbias, bool accumulate) override {
    pool_->bias_relu_pool_dropout_backward(d_output, winner, dropout, dx, dbias, accumulate);
  }

 private:
  std::unique_ptr<ImageOps> pool_;
};

class ColumnFirstCpu final : public CpuDevice {
 public:
  ColumnFirstCpu() : CpuDevice({.precision = Precision::fp32}) {
    attach<ImageOps>(std::make_shared<ColumnFirstPool>(*this));
  }
};

/// Whole multiples of 1 / parts within [-limit, limit] / parts, moved by `offset`.
Values fractions(std::int64_t count, std::uint32_t seed, int limit, double parts, double offset = 0.0) {
  Values values = random_values(count, seed, -limit - 0.5, limit + 0.5);
  for (double& value : values) value = std::round(value) / parts + offset;
  return values;
}

/// Black and white images, and weights with which all activations up to the hidden layer are exact in bf16. The offset
/// of the hidden layer's bias keeps its units away from 0, where rounding would decide the sign.
std::unique_ptr<ModelRun> make_exact_run(Device& device, bool dropout) {
  auto run = std::make_unique<ModelRun>(device, DType::bf16, [&](Bench& bench) -> BoundModel {
    ImageBatch data = make_batch(bench, kMaxBatch, 28, 28, 10, kFirst);
    std::vector<std::uint8_t> pixels;
    for (const double pixel : bench.take(data.images)) pixels.push_back(pixel < 128.0 ? 0 : 255);
    data.images = bench.put_bytes(pixels, data.images.shape);
    return {make_cnn(device, {kMaxBatch, 4711, dropout}, {data, data}), data};
  });
  Values conv2 = fractions(64 * 9 * 32, 12, 1, 8.0);
  const Values kept = random_values(64 * 9 * 32, 13, 0.0, 1.0);
  for (std::size_t i = 0; i < conv2.size(); ++i) conv2[i] *= kept[i] < 0.5 ? 1.0 : 0.0;
  const std::map<std::string, Values> weights = {{"conv1.weight", fractions(32 * 9, 10, 2, 4.0)},
                                                 {"conv1.bias", fractions(32, 11, 2, 4.0)},
                                                 {"conv2.weight", conv2},
                                                 {"conv2.bias", fractions(64, 14, 4, 8.0)},
                                                 {"fc1.weight", fractions(128 * 9216, 15, 1, 64.0)},
                                                 {"fc1.bias", Values(128, 3.0 / 8192.0)}};
  for (std::size_t i = 0; i < run->weights().size(); ++i) {
    const auto found = weights.find(run->model().parameters()[i].name);
    if (found == weights.end()) continue;
    const Tensor& weight = run->weights()[i];
    const Tensor values = run->bench().put(found->second, weight.shape);
    EXPECT_EQ(run->bench().take(values), found->second) << found->first << " is not exact in bf16";
    device.copy(weight.data, values.data, weight.bytes(), device.compute_stream());
  }
  return run;
}

class CnnKernelsTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    cuda_ = make_cuda_device({Precision::bf16}, 0);
    ASSERT_NE(make_cnn_kernels(*cuda_, CnnShape{}, kMaxBatch), nullptr) << cuda_->name();
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

TEST_P(CnnKernelsTest, OfExactInputsTheLossIsExact) {
  ColumnFirstCpu cpu;
  const auto fused = make_exact_run(*cuda_, GetParam());
  const auto reference = make_exact_run(cpu, GetParam());
  for (const std::int64_t count : {1, 5, 132, 300}) {
    const float scale = 1.0f / static_cast<float>(count);
    fused->forward(fused->slice(count), scale);
    const MetricSums expected = reference->forward(reference->slice(count), scale);
    fused->backward(false);  // completes the sums
    EXPECT_NEAR(fused->sums().loss, expected.loss, 1e-5 * expected.loss);
    EXPECT_EQ(fused->sums().correct, expected.correct);
    const MetricSums evaluated = reference->evaluate(reference->slice(count));
    EXPECT_NEAR(fused->evaluate(fused->slice(count)).loss, evaluated.loss, 1e-5 * evaluated.loss);
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

std::size_t activation_bytes(Device& device, std::int64_t batch) {
  return make_cnn(device, {batch, 1, true}, {})->memory().at(0).bytes;
}

TEST(CnnKernelsOnTheMetaDevice, KeepWhatTheKernelsOfAGpuKeep) {
  const auto meta = make_meta_device({.precision = Precision::bf16}, DeviceKind::cuda);
  const std::size_t on_meta = activation_bytes(*meta, 300) - activation_bytes(*meta, 100);
  EXPECT_EQ(on_meta, 200u * 42240);
  const auto layers = make_meta_device({.precision = Precision::bf16, .fused = false}, DeviceKind::cuda);
  EXPECT_GT(activation_bytes(*layers, 300), 4 * activation_bytes(*meta, 300));
  if (cuda_device_count() == 0) return;
  const auto gpu = make_cuda_device({.precision = Precision::bf16}, 0);
  if (cuda_has_bf16()) {
    EXPECT_EQ(activation_bytes(*gpu, 300) - activation_bytes(*gpu, 100), on_meta);
  }
}

}  // namespace
}  // namespace ddptrain::tests
