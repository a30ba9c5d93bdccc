#pragma once

#include <cstdint>
#include <vector>

#include "runtime/core/step.h"
#include "runtime/core/tensor.h"
#include "runtime/device/device.h"

namespace ddptrain {

/// The class that a classifier takes for a sample: the one of the largest logit, the lowest of several.
struct Prediction {
  std::uint8_t label = 0;
  float probability = 0.0f;
};

/// Predictions of a classifier. A model that makes them implements this interface and Model.
class Classifier {
 public:
  virtual ~Classifier() = default;

  /// Model::evaluate() of the slice, which adds to *sums, and what it takes each sample for. Waits, and leaves no trace
  /// in training. On the primitive operations: fused kernels may round otherwise.
  virtual std::vector<Prediction> classify(const Slice& slice, MetricSums* sums) = 0;
};

/// The predicted classes, from logits [samples, classes] on the device; at most 256 classes. Waits for the device.
std::vector<Prediction> predictions_of(Device& device, const Tensor& logits);

}  // namespace ddptrain
