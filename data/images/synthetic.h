#pragma once

#include <cstdint>

#include "data/images/images.h"

namespace ddptrain {

/// Random 28x28 images of ten classes that a network can learn (a smooth pattern per class under noise), for
/// measurements of any size without files: `train_count` for training and a tenth as many, at least 10, for the test.
/// The same on every machine for the same arguments. UsageError where `train_count` is not in [1, 2^32).
ImageData make_synthetic(std::int64_t train_count, std::uint64_t seed);

}  // namespace ddptrain
