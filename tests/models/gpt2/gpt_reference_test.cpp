#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/models/gpt2/gpt_runs.h"

namespace ddptrain::tests {
namespace {

/// gpt_reference.py says how weights and tokens come about and what the file holds.
class GptReferenceTest : public ::testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override {
    if (GetParam().kind == DeviceKind::cuda && cuda_device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    std::ifstream file(DDP_GPT_REFERENCE);
    file >> reference_;
    const auto& shape = reference_.at("shape");
    shape_ = {shape.at("layers"),       shape.at("width"),    shape.at("heads"),
              shape.at("feed_forward"), shape.at("sequence"), shape.at("vocabulary")};
    device_ = make_device(GetParam());
  }

  std::map<std::string, Values> weights() const {
    std::map<std::string, std::int64_t> sizes;
    for (const ParameterSpec& spec : gpt2_parameters(shape_)) sizes[spec.name] = spec.size();
    std::map<std::string, Values> result;
    int place = 0;
    for (const auto& entry : reference_.at("gradients_of_mean_loss")) {
      const std::string name = entry.at("name");
      const bool norm_weight = name.find("ln_") != std::string::npos && name.find("weight") != std::string::npos;
      for (std::int64_t i = 0; i < sizes.at(name); ++i) {
        const double wave = 0.3 * std::sin(0.7 * static_cast<double>(i) + 1.3 * place);
        result[name].push_back(wave + (norm_weight ? 1.0 : 0.0));
      }
      ++place;
    }
    return result;
  }
  TokenBatch tokens(Bench& bench) const {
    const std::int64_t count = reference_.at("batch");
    std::vector<std::uint32_t> text;
    for (std::int64_t k = 0; k <= count * shape_.sequence; ++k) {
      text.push_back(static_cast<std::uint32_t>((k * k + 3 * k) / 2 % shape_.vocabulary));
    }
    return put_tokens(bench, text, count, static_cast<std::uint32_t>(shape_.sequence));
  }

  nlohmann::json reference_;
  Gpt2Shape shape_;
  std::unique_ptr<Device> device_;
};

TEST_P(GptReferenceTest, IsWhatPyTorchComputes) {
  DecoderOptions options = make_options(shape_);
  options.max_batch = reference_.at("batch");
  TokenBatch batch;
  ModelRun run(*device_, device_->dtype(), [&](Bench& bench) {
    batch = tokens(bench);
    return bind_gpt(*device_, options, batch, batch);
  });
  const std::map<std::string, Values> values = weights();
  ASSERT_EQ(values.size(), run.weights().size());
  for (std::size_t i = 0; i < run.weights().size(); ++i) {
    const Tensor& weight = run.weights()[i];
    const Tensor source = run.bench().put(values.at(run.model().parameters()[i].name), weight.shape);
    device_->convert(source, weight, device_->compute_stream());
  }
  const double predictions = static_cast<double>(batch.count * shape_.sequence);
  const double tolerance = GetParam().tolerance;
  run.forward(batch, static_cast<float>(1.0 / predictions));
  const Gradients gradients = run.backward(false);
  const MetricSums sums = run.sums();
  const double loss = reference_.at("loss_sum");
  EXPECT_NEAR(sums.loss, loss, tolerance * loss);
  EXPECT_EQ(sums.samples, static_cast<std::uint64_t>(predictions));
  if (tolerance < 1e-3) {
    EXPECT_EQ(sums.correct, reference_.at("hits").get<std::uint64_t>());
  }
  // The factor of the gradient is a float in every precision.
  const double expected_scale = predictions * static_cast<double>(static_cast<float>(1.0 / predictions));
  double largest = 0.0;
  for (const auto& entry : reference_.at("gradients_of_mean_loss")) {
    largest = std::max(largest, entry.at("norm").get<double>() * expected_scale);
  }
  for (const auto& entry : reference_.at("gradients_of_mean_loss")) {
    const Values& gradient = gradients.at(entry.at("name"));
    const double expected = entry.at("norm").get<double>() * expected_scale;
    const double allowed = tolerance * std::max(expected, 0.002 * largest);  // small ones are sums that cancel
    EXPECT_NEAR(norm(gradient), expected, allowed) << entry.at("name");
    const auto samples = entry.at("samples").get<Values>();
    for (std::size_t i = 0; i < samples.size(); ++i) {
      EXPECT_NEAR(gradient[i * gradient.size() / samples.size()], samples[i] * expected_scale, allowed)
          << entry.at("name") << " sample " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, GptReferenceTest,
                         ::testing::Values(DeviceCase{"cpu_fp64", DeviceKind::cpu, Precision::fp64, 1e-9},
                                           DeviceCase{"cpu_fp32", DeviceKind::cpu, Precision::fp32, 5e-5},
                                           DeviceCase{"cuda_fp32", DeviceKind::cuda, Precision::fp32, 5e-5},
                                           DeviceCase{"cuda_tf32", DeviceKind::cuda, Precision::tf32, 2e-2},
                                           DeviceCase{"cuda_bf16", DeviceKind::cuda, Precision::bf16, 2e-1}),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace ddptrain::tests
