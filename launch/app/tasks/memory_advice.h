#pragma once

#include <functional>

#include "launch/app/flags/options.h"
#include "runtime/comm/world.h"

/// Whether the memory of a run suffices: what its components would keep, found out on a paper device, against what is
/// free. What libraries take is not known, so a run is refused only if what is known does not fit.

namespace ddptrain {

/// For --batch auto: the largest power of two with which a rank leaves a tenth of the free memory, on all ranks, and
/// for which a step has enough samples. UsageError if not even one sample fits. After Workload::load(); the GPU is the
/// current one. `sharing`: ranks that use this rank's GPU. Collective.
std::int64_t largest_batch_that_fits(const World& world, DeviceKind device, int sharing, const Options& options,
                                     Workload& workload);

/// UsageError if a rank would keep more than its device has, with the table of --dry-run, the free memory and flags
/// that lessen what a rank keeps. Warns if it is close. Otherwise as largest_batch_that_fits().
void require_memory(const World& world, DeviceKind device, int sharing, const Options& options, Workload& workload);

/// Runs `work`. If memory runs out on a device or on the host: OutOfMemory that also says what a rank keeps and which
/// flags lessen it. Not collective: `work` may fail so on one rank alone.
void explain_out_of_memory(const Options& options, Workload& workload, const World& world, DeviceKind device,
                           const std::function<void()>& work);

}  // namespace ddptrain
