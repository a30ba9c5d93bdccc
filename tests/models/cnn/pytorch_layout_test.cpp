#include "models/cnn/pytorch_layout.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "models/cnn/cnn.h"
#include "tests/models/model_run.h"

namespace ddptrain::tests {
namespace {

constexpr std::int64_t kBatch = 7;
constexpr CnnShape kSmall{11, 12, 4, 6, 8, 10};

using File = std::map<std::string, HostTensor>;

/// What torch.nn.Conv2d(in, out, 3) and ReLU do to one image [in, height, width].
std::vector<double> conv_relu(const std::vector<double>& image, std::int64_t height, std::int64_t width,
                              const HostTensor& weight, const HostTensor& bias) {
  const std::int64_t outputs = weight.shape.at(0), inputs = weight.shape.at(1);
  std::vector<double> out;
  for (std::int64_t o = 0; o < outputs; ++o) {
    for (std::int64_t y = 0; y + 2 < height; ++y) {
      for (std::int64_t x = 0; x + 2 < width; ++x) {
        double sum = bias.values.at(static_cast<std::size_t>(o));
        for (std::int64_t i = 0; i < inputs; ++i) {
          for (std::int64_t k = 0; k < 9; ++k) {
            sum += static_cast<double>(weight.values.at(static_cast<std::size_t>((o * inputs + i) * 9 + k))) *
                   image.at(static_cast<std::size_t>((i * height + y + k / 3) * width + x + k % 3));
          }
        }
        out.push_back(std::max(sum, 0.0));
      }
    }
  }
  return out;
}

/// torch.nn.MaxPool2d(2), which leaves out an odd last row or column.
std::vector<double> pool(const std::vector<double>& image, std::int64_t channels, std::int64_t height,
                         std::int64_t width) {
  std::vector<double> out;
  for (std::int64_t c = 0; c < channels; ++c) {
    for (std::int64_t y = 0; y + 1 < height; y += 2) {
      for (std::int64_t x = 0; x + 1 < width; x += 2) {
        const auto at = [&](std::int64_t dy, std::int64_t dx) {
          return image.at(static_cast<std::size_t>((c * height + y + dy) * width + x + dx));
        };
        out.push_back(std::max({at(0, 0), at(0, 1), at(1, 0), at(1, 1)}));
      }
    }
  }
  return out;
}

/// torch.nn.Linear.
std::vector<double> linear(const std::vector<double>& in, const HostTensor& weight, const HostTensor& bias) {
  std::vector<double> out(bias.values.begin(), bias.values.end());
  for (std::size_t o = 0; o < out.size(); ++o) {
    for (std::size_t i = 0; i < in.size(); ++i) out[o] += weight.values.at(o * in.size() + i) * in[i];
  }
  return out;
}

/// The logits of an image [height, width], as a module of PyTorch with the tensors of `file` computes them.
std::vector<double> in_pytorch(const File& file, const std::vector<double>& image) {
  const std::int64_t h = kSmall.height, w = kSmall.width;
  const auto first = conv_relu(image, h, w, file.at("conv1.weight"), file.at("conv1.bias"));
  const auto second = conv_relu(first, h - 2, w - 2, file.at("conv2.weight"), file.at("conv2.bias"));
  auto hidden = linear(pool(second, kSmall.conv2, h - 4, w - 4), file.at("fc1.weight"), file.at("fc1.bias"));
  for (double& value : hidden) value = std::max(value, 0.0);
  return linear(hidden, file.at("fc2.weight"), file.at("fc2.bias"));
}

TEST(CnnInPyTorchsLayout, ComputesTheSame) {
  const auto device = make_cpu_device({Precision::fp64});
  ImageBatch data;
  ModelRun run(*device, DType::f32, [&](Bench& bench) -> BoundModel {
    data = make_batch(bench, kBatch, kSmall.height, kSmall.width, kSmall.classes, 3);
    return {make_cnn(*device, {kBatch, 99, true}, {data, data}, kSmall), data};
  });
  File file;
  for (std::size_t i = 0; i < run.weights().size(); ++i) {
    const ParameterSpec& spec = run.model().parameters()[i];
    const Values values = run.bench().take(run.weights()[i]);
    const std::vector<float> in_memory(values.begin(), values.end());
    file[spec.name] = to_pytorch(kSmall, spec.name, {spec.shape, in_memory});
    EXPECT_EQ(from_pytorch(kSmall, spec.name, file[spec.name].values), in_memory) << spec.name;
  }
  EXPECT_EQ(file.at("conv1.weight").shape, (Shape{4, 1, 3, 3}));
  EXPECT_EQ(file.at("conv2.weight").shape, (Shape{6, 4, 3, 3}));
  EXPECT_EQ(file.at("fc1.weight").shape, (Shape{8, 3 * 4 * 6}));
  EXPECT_EQ(file.at("fc2.weight").shape, (Shape{10, 8}));

  const auto pixels = static_cast<std::size_t>(kSmall.height * kSmall.width);
  std::uint64_t correct = 0;
  double loss = 0.0;
  for (std::uint32_t i = 0; i < kBatch; ++i) {
    const std::size_t row = BatchRows(data.order, data.step)[i];
    std::vector<double> image;
    for (std::size_t p = 0; p < pixels; ++p) {
      image.push_back(data.images.as<const std::uint8_t>()[row * pixels + p] / 255.0);
    }
    const std::vector<double> logits = in_pytorch(file, image);
    const auto largest = std::max_element(logits.begin(), logits.end());
    double total = 0.0;
    for (const double logit : logits) total += std::exp(logit - *largest);
    const auto label = data.labels.as<const std::uint8_t>()[row];
    loss += std::log(total) + *largest - logits.at(label);
    correct += largest - logits.begin() == label ? 1 : 0;
  }
  const MetricSums sums = run.evaluate(run.slice());
  EXPECT_NEAR(sums.loss, loss, 1e-9 * loss);
  EXPECT_EQ(sums.correct, correct);
}

}  // namespace
}  // namespace ddptrain::tests
