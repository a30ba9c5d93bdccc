#pragma once

#include <functional>

#include "launch/options.h"
#include "runtime/comm/world.h"

namespace ddptrain {

/// Runs `work`. Where memory runs out on a device or on the host: OutOfMemory that also says what a rank keeps and
/// which flags lessen it. Not collective: `work` may fail so on one rank alone.
void explain_out_of_memory(const Options& options, Workload& workload, const World& world, DeviceKind device,
                           const std::function<void()>& work);

}  // namespace ddptrain
