#pragma once

#include "runtime/core/step.h"
#include "runtime/core/tensor.h"

namespace ddptrain {

/// Images that are resident where the device computes. Owns nothing.
struct ImageSource {
  Tensor images;  ///< [samples, height, width] u8
  Tensor labels;  ///< [samples] u8
};

/// A slice of images.
struct ImageBatch : Slice, ImageSource {};

}  // namespace ddptrain
