#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/images/images.h"
#include "models/cnn/cnn_kernels.h"
#include "runtime/device/device.h"
#include "runtime/ops/convolution.h"
#include "runtime/train/model.h"

namespace ddptrain {

struct CnnOptions {
  std::int64_t max_batch = 0;  ///< Samples per micro-step.
  std::uint64_t seed = 0;      ///< Seed of dropout.
  bool dropout = true;
  /// For convolutions without fused kernels, on GPUs. UsageError if this device has no such choice.
  MemoryFormat memory_format = MemoryFormat::automatic;
  /// Values of a parameter to start from, by name; null: random ones.
  std::function<std::vector<float>(const std::string& name)> pretrained = nullptr;
};

/// In the order of the model's parameters(); values to start from are random.
std::vector<ParameterSpec> cnn_parameters(const CnnShape& shape);

/// Classifier of grey images: conv 3x3 + ReLU, conv 3x3 + ReLU (both valid), max-pool 2x2, dropout 0.25, linear + ReLU,
/// dropout 0.5, linear, softmax cross-entropy. 1,199,882 parameters for the default shape. Fused kernels of the
/// device compute it if there are some, else the primitive operations.
std::unique_ptr<Model> make_cnn(Device& device, const CnnOptions& options, ResidentImages images,
                                const CnnShape& shape = {});

}  // namespace ddptrain
