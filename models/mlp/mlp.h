#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/images/images.h"
#include "runtime/device/device.h"
#include "runtime/train/model.h"

namespace ddptrain {

struct MlpShape {
  std::int64_t height = 28;
  std::int64_t width = 28;
  std::int64_t hidden = 512;
  std::int64_t classes = 10;

  std::int64_t pixels() const { return height * width; }
};

/// In the order of the model's parameters(); values to start from are random.
std::vector<ParameterSpec> mlp_parameters(const MlpShape& shape);

/// Classifier of grey images: two hidden layers of linear + ReLU, linear, softmax cross-entropy. 669,706 parameters for
/// the default shape. `max_batch`: samples per micro-step. `pretrained`: values of a parameter to start from, by name;
/// null: random ones.
std::unique_ptr<Model> make_mlp(Device& device, std::int64_t max_batch, ResidentImages images,
                                const MlpShape& shape = {},
                                const std::function<std::vector<float>(const std::string& name)>& pretrained = nullptr);

}  // namespace ddptrain
