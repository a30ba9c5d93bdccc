#pragma once

#include <string>

#include "launch/app/flags/options.h"
#include "runtime/comm/world.h"

namespace ddptrain {

/// Rank 0 prints the content and state of the checkpoint at `path`, or of each checkpoint in a folder. UsageError if
/// there is none. Error if one is damaged or none is complete. A checkpoint that is being written counts as incomplete.
/// Collective.
void inspect_checkpoints(const World& world, const std::string& path);

/// Writes the weights of the checkpoint options.resume to the folder options.export_to, in the format of the model's
/// Workload. Needs neither data nor flags of the model. Collective.
void export_weights(const World& world, const Options& options);

}  // namespace ddptrain
