#pragma once

#include <functional>

#include "launch/app/flags/options.h"
#include "runtime/comm/world.h"

/// Compares the memory that a run's components would allocate, measured on a meta device, with the free memory. The
/// memory of libraries is not known, so a run is refused only if the known memory does not fit.

namespace ddptrain {

/// For --batch auto: the largest power of two that leaves a tenth of the free memory on all ranks and for which the
/// data set has enough samples. UsageError if not even one sample fits. Uses the current GPU. Call it after
/// Workload::load(). `sharing` is the number of ranks that use this rank's GPU. Collective.
std::int64_t largest_batch_that_fits(const World& world, DeviceKind device, int sharing, const Options& options,
                                     Workload& workload);

/// UsageError if a rank needs more memory than its device has. The message has the table of --dry-run, the free memory
/// and flags that save memory. Warns if memory is almost full. For the rest see largest_batch_that_fits().
void require_memory(const World& world, DeviceKind device, int sharing, const Options& options, Workload& workload);

/// Runs `work`. If it runs out of memory, the OutOfMemory error also has the memory of a rank and flags that save
/// memory. Not collective, because `work` may fail on one rank only.
void explain_out_of_memory(const Options& options, Workload& workload, const World& world, DeviceKind device,
                           const std::function<void()>& work);

}  // namespace ddptrain
