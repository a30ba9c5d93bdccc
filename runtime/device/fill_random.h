#pragma once

#include <cstdint>

#include "runtime/device/device.h"

namespace ddptrain {

/// Fills with uniform values in [-bound, bound], which the seed determines and which repeat after 4 million; f32 or
/// bf16. Waits.
void fill_random(Device& device, const Tensor& values, double bound, std::uint32_t seed);

}  // namespace ddptrain
