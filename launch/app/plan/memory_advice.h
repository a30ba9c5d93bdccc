#pragma once

#include <cstdint>
#include <string>

#include "launch/app/plan/run_plan.h"
#include "runtime/comm/world.h"
#include "runtime/train/report/description.h"

/// Compares the memory that a run's components would allocate, measured on a meta device, with the free memory. The
/// memory of libraries is not known, so a run is refused only if the known memory does not fit.

namespace ddptrain {

/// For --batch auto: the largest power of two that leaves a tenth of the free memory on all ranks and for which the
/// data set has enough samples. UsageError if not even one sample fits. Uses the current GPU. Call it after
/// Workload::load(). Collective.
std::int64_t largest_batch_that_fits(const World& world, const PlannedMachine& machine, const Options& options,
                                     Workload& workload);

/// UsageError if a rank needs more memory than its device has, or with --offload the ranks of a host more than it has.
/// The message has the table of --dry-run, the free memory and flags that save memory. Warns if memory is almost full.
/// `options`: those of the plan. For the rest see largest_batch_that_fits().
void require_memory(const World& world, const RunPlan& plan, const Options& options, Workload& workload);

/// A line that compares the free memory of this host with that of its ranks on CPUs: `kept` is the rank that keeps
/// most. If they do not fit, it names flags that save memory. `options`: those of the plan.
std::string cpu_memory_text(const World& world, const RunPlan& plan, const Description& kept, const Options& options,
                            Workload& workload);

/// A line that compares the free memory of this host with the `bytes` that its ranks together would keep there besides
/// the memory of their GPUs.
std::string host_memory_text(const World& world, std::size_t bytes);

/// What to say where memory runs out although require_memory() let the run begin: `what` happened, the memory of rank
/// `rank`, and flags that save memory. Not collective, because it may happen on one rank only.
std::string out_of_memory_text(const std::string& what, const RunPlan& plan, int rank, const Options& options,
                               Workload& workload);

}  // namespace ddptrain
