#pragma once

#include <functional>
#include <memory>

#include "runtime/comm/world.h"
#include "runtime/core/process/watch.h"

namespace ddptrain {

/// The body of main(): runs `prepare` (reads the command line, may change the environment), starts MPI, runs `work`
/// with the ranks of the job, and returns the exit code. An error of `prepare`, or one that all ranks have agreed on,
/// is printed by rank 0 and gives 2 (UsageError) or 1; so does output that was not written, after the work. Any other
/// error is printed with its rank and host and ends all ranks with 1. `watch`: see World. If no launcher started this
/// process, and `needs_ranks`, asked after `prepare`, is false, the work gets a world of one rank without MPI.
int run_program(
    const char* name, int* argc, char*** argv, const std::function<void()>& prepare,
    const std::function<void(const World&)>& work, std::shared_ptr<Watch> watch = std::make_shared<Watch>(),
    const std::function<bool()>& needs_ranks = [] { return true; });

/// Runs a part of the work. An error that the ranks have not agreed on ends all ranks here. It does not unwind further,
/// because destructors could wait for ranks that are gone.
void run_or_end_job(const char* name, const World& world, const std::function<void()>& part);

}  // namespace ddptrain
