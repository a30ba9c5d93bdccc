#pragma once

#include <string>

#include "launch/app/flags/options.h"
#include "runtime/comm/world.h"

namespace ddptrain {

/// Prints, on rank 0, what the checkpoint at `path`, or each in a folder of them, holds and whether it is undamaged.
/// UsageError where there is none. Error if one is damaged, or none is complete; what a run has begun to write counts
/// as incomplete. Collective.
void inspect_checkpoints(const World& world, const std::string& path);

/// Writes the weights of the checkpoint that options.resume names into the folder options.export_to, as the model's
/// Workload does it. Needs no data, and no flags of the model. Collective.
void export_weights(const World& world, const Options& options);

}  // namespace ddptrain
