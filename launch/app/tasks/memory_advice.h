#pragma once

#include <functional>

#include "launch/app/flags/options.h"
#include "runtime/comm/world.h"

/// Whether a run finds memory: what its components say on paper that they keep, against what is there. What libraries
/// take beside that is not known, so a run is refused only where what is known does not fit.

namespace ddptrain {

/// For --batch auto: the largest power of two for which a rank keeps what is there less a part for libraries, on all
/// ranks, and a step has enough samples. UsageError where not even one sample fits. After Workload::load(); the GPU is
/// the current one. `sharing`: ranks that use this rank's GPU. Collective.
std::int64_t largest_batch_that_fits(const World& world, DeviceKind device, int sharing, const Options& options,
                                     Workload& workload);

/// UsageError, with the table of --dry-run, what is there and which flags would fit (each tried on paper), where a rank
/// would keep more than its device has. Warns where it is close. Otherwise as largest_batch_that_fits().
void require_memory(const World& world, DeviceKind device, int sharing, const Options& options, Workload& workload);

/// Runs `work`. Where memory runs out on a device or on the host: OutOfMemory that also says what a rank keeps and
/// which flags lessen it. Not collective: `work` may fail so on one rank alone.
void explain_out_of_memory(const Options& options, Workload& workload, const World& world, DeviceKind device,
                           const std::function<void()>& work);

}  // namespace ddptrain
