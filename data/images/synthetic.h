#pragma once

#include <cstdint>

#include "data/images/images.h"

namespace ddptrain {

/// Makes random 28x28 images of ten classes for measurements without files. Each class has a smooth pattern under
/// noise, which a network can learn. There are `train_count` training images, and a tenth as many test images, but at
/// least 10. The images depend only on the arguments. UsageError unless `train_count` is in [1, 2^32).
ImageData make_synthetic(std::int64_t train_count, std::uint64_t seed);

}  // namespace ddptrain
