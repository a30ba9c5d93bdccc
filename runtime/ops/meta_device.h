#pragma once

#include <memory>

#include "runtime/device/device.h"

namespace ddptrain {

/// A meta device of `kind`, for descriptions of runs: it computes nothing, and the machine need not have such a device.
/// A GPU that it describes is current_gpu().
/// Its allocations take address space, and memory only if they are written to.
std::unique_ptr<Device> make_meta_device(DeviceOptions options, DeviceKind kind);

}  // namespace ddptrain
