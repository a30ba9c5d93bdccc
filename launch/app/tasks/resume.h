#pragma once

#include <optional>
#include <string>

#include "launch/app/flags/options.h"
#include "runtime/comm/world.h"
#include "runtime/train/checkpoint/checkpoint.h"

namespace ddptrain {

/// Of training with this command line. `data`: what require_same_data() found.
RunIdentity identity_of(const CommandLine& command_line, const World& world, const std::string& data,
                        const std::string& precision);

/// The checkpoint that --resume names; nothing without --resume, or where auto finds none. The same UsageError on all
/// ranks if --checkpoint and --resume do not go together, or no checkpoint of several can be used. Collective.
std::optional<Checkpoint> checkpoint_to_resume(const World& world, const Options& options);

/// UsageError where `run` cannot go on from the checkpoint, or not to the same parameters and --allow-change is not
/// given: names every flag that differs.
void check_resumable(const Checkpoint& checkpoint, const RunIdentity& run, const CommandLine& command_line);

}  // namespace ddptrain
