#pragma once

#include <memory>

#include "runtime/device/device.h"

namespace ddptrain {

/// A device that stands in for one of `kind`, which need not be there, where a run is described and nothing is
/// computed: what is allocated takes address space and no memory, until it is written to.
std::unique_ptr<Device> make_paper_device(DeviceOptions options, DeviceKind kind);

}  // namespace ddptrain
