#include <algorithm>
#include <cmath>
#include <fstream>

#include "models/decoder/decoder.h"
#include "models/llama/llama_folder.h"
#include "tests/models/hugging_face/stored_model.h"
#include "tests/ops/bench.h"

namespace ddptrain::tests {
namespace {

/// llama_reference.py says how weights and text come about and what the file holds. The models are read from folders,
/// with the config.json that transformers writes.
class LlamaReferenceTest : public ::testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override {
    if (GetParam().kind == DeviceKind::cuda && cuda_device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    std::ifstream file(DDP_LLAMA_REFERENCE);
    file >> reference_;
    text_ = reference_.at("text").get<std::vector<std::uint32_t>>();
    device_ = make_device(GetParam());
  }

  void write_folder(const nlohmann::json& model) {
    std::map<std::string, HostTensor> tensors;
    int place = 0;
    for (const auto& [name, shape] : model.at("tensors").items()) {  // sorted
      HostTensor& tensor = tensors[name];
      tensor.shape = shape.get<Shape>();
      const double more = name.find("norm") != std::string::npos ? 1.0 : 0.0;
      for (std::int64_t i = 0; i < element_count(tensor.shape); ++i) {
        const double value = 0.3 * std::sin(0.7 * static_cast<double>(i) + 1.3 * place) + more;
        tensor.values.push_back(static_cast<float>(value));
      }
      ++place;
    }
    write_model(folder_.path(), tensors, model.at("config").dump());
  }

  /// The logits after each token of the text.
  std::vector<std::vector<float>> logits_of(const LlamaFolder& folder) {
    DecoderOptions options;
    options.table = llama_table(folder.shape());
    options.max_batch = 1;
    options.longest_text = std::ssize(text_);
    const auto model = make_decoder(*device_, options, {});
    Bench bench(*device_);
    ModelTensors tensors;
    for (const ParameterSpec& spec : model->parameters()) {
      const std::vector<float> read = folder.read(spec.name);
      Values values(read.begin(), read.end());
      values.resize(static_cast<std::size_t>(spec.padded_size()));
      tensors.weights.push_back({bench.put(values, {spec.padded_size()}).data, device_->dtype(), spec.shape});
      tensors.gradients.push_back(bench.poisoned(spec.shape));
    }
    model->bind(tensors);
    std::vector<std::vector<float>> logits;
    for (std::size_t size = 1; size <= text_.size(); ++size) {
      model->begin_text({text_.data(), size}, static_cast<std::int64_t>(size) - 1);
      model->forward_text(nullptr);
      const std::span<const float> next = model->next_logits();
      logits.emplace_back(next.begin(), next.end());
    }
    return logits;
  }

  nlohmann::json reference_;
  std::vector<std::uint32_t> text_;
  std::unique_ptr<Device> device_;
  TempFolder folder_;
};

TEST_P(LlamaReferenceTest, LogitsAreThoseOfTransformers) {
  for (const auto& [name, model] : reference_.at("models").items()) {
    write_folder(model);
    const LlamaFolder folder(folder_.path());
    folder.check_values();
    const auto expected = model.at("logits").get<std::vector<Values>>();
    const auto found = logits_of(folder);
    ASSERT_EQ(found.size(), expected.size());
    double largest = 0.0;
    double apart = 0.0;
    for (std::size_t row = 0; row < found.size(); ++row) {
      ASSERT_EQ(found[row].size(), expected[row].size());
      for (std::size_t i = 0; i < found[row].size(); ++i) {
        largest = std::max(largest, std::abs(expected[row][i]));
        apart = std::max(apart, std::abs(expected[row][i] - found[row][i]));
      }
    }
    EXPECT_GT(largest, 0.1) << name;
    // transformers in bf16 is as far from its own logits in double precision
    const bool bf16 = GetParam().precision == Precision::bf16;
    EXPECT_LE(apart, bf16 ? 1.5 * model.at("bf16_apart").get<double>() : GetParam().tolerance * std::max(1.0, largest))
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, LlamaReferenceTest,
                         ::testing::Values(DeviceCase{"cpu_fp64", DeviceKind::cpu, Precision::fp64, 5e-6},
                                           DeviceCase{"cpu_fp32", DeviceKind::cpu, Precision::fp32, 1e-5},
                                           DeviceCase{"cuda_fp32", DeviceKind::cuda, Precision::fp32, 1e-5},
                                           DeviceCase{"cuda_tf32", DeviceKind::cuda, Precision::tf32, 5e-3},
                                           DeviceCase{"cuda_bf16", DeviceKind::cuda, Precision::bf16, 4e-2}),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace ddptrain::tests
