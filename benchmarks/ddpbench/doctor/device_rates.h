#pragma once

#include <functional>

#include "runtime/comm/world.h"
#include "runtime/device/device.h"

/// Short measurements of one device, and of all-reduces over devices, for comparison with others of the same kind.

namespace ddptrain::bench {

/// FLOP/s of matrix products of random numbers, `edge` x `edge` x `edge` at the device's precision, over so many
/// seconds.
double product_flops(Device& device, std::int64_t edge, double seconds);

/// GB/s: on the CPU of copies within memory, which count what is read and what is written; on a GPU of copies from host
/// memory. `under_load` is called while copies run.
double copy_gb_per_s(Device& device, double seconds, const std::function<void()>& under_load);

/// Bus bandwidth of an all-reduce over these ranks, of a size that takes about 10 ms, GB/s. Collective.
double all_reduce_gb_per_s(const World& world, Device& device, double seconds);

}  // namespace ddptrain::bench
