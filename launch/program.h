#pragma once

#include <exception>
#include <functional>

#include "runtime/comm/world.h"

namespace ddptrain {

/// The body of main(): runs `work` with the ranks of the job and returns the exit code. An error that all ranks have
/// agreed on is printed by rank 0 and gives 2 (UsageError) or 1. Any other error is printed with its rank and host and
/// ends all ranks with 1.
int run_program(const char* name, int* argc, char*** argv, const std::function<void(const World&)>& work);

/// Within a handler: prints `error` and ends all ranks, unless they have agreed on it. For errors that must not unwind
/// further, because destructors on the way would wait for ranks that are gone.
void end_job_unless_agreed(const char* name, const World& world, const std::exception& error);

}  // namespace ddptrain
