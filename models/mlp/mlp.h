#pragma once

#include <cstdint>
#include <memory>

#include "data/images.h"
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

/// Classifier of grey images: two hidden layers of linear + ReLU, linear, softmax cross-entropy. 669,706 parameters for
/// the default shape. `max_batch`: samples per micro-step.
std::unique_ptr<Model> make_mlp(Device& device, std::int64_t max_batch, ResidentImages images,
                                const MlpShape& shape = {});

}  // namespace ddptrain
