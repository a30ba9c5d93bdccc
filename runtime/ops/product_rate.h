#pragma once

#include <cstdint>

#include "runtime/device/device.h"

namespace ddptrain {

/// FLOP/s of matrix products of random numbers, `edge` x `edge` x `edge` at the device's precision, over so many
/// seconds.
double product_flops(Device& device, std::int64_t edge, double seconds);

}  // namespace ddptrain
