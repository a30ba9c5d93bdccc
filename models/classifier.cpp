#include "models/classifier.h"

#include <algorithm>
#include <cmath>

namespace ddptrain {
namespace {

Prediction predict(const float* logits, std::size_t classes) {
  const float* const largest = std::max_element(logits, logits + classes);
  double total = 0.0;
  for (std::size_t i = 0; i < classes; ++i) total += std::exp(static_cast<double>(logits[i]) - *largest);
  return {static_cast<std::uint8_t>(largest - logits), static_cast<float>(1.0 / total)};
}

}  // namespace

std::vector<Prediction> predictions_of(Device& device, const Tensor& logits) {
  const Buffer staging = device.allocate(DType::f32, logits.shape);
  device.convert(logits, staging.view(DType::f32, logits.shape), device.compute_stream());
  std::vector<float> values(static_cast<std::size_t>(logits.size()));
  device.copy_to_host(values.data(), staging.data(), staging.bytes());
  const auto classes = static_cast<std::size_t>(logits.dim(1));
  std::vector<Prediction> predictions;
  for (std::size_t at = 0; at < values.size(); at += classes) {
    predictions.push_back(predict(values.data() + at, classes));
  }
  return predictions;
}

}  // namespace ddptrain
