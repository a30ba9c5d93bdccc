#pragma once

#include <cstdint>

#include "runtime/device/device.h"

namespace ddptrain {

/// Fills `values` (f32 or bf16) with uniform values in [-bound, bound]. The seed determines them. They repeat after 4
/// million values. Waits.
void fill_random(Device& device, const Tensor& values, double bound, std::uint32_t seed);

}  // namespace ddptrain
