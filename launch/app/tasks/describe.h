#pragma once

#include "launch/app/flags/options.h"
#include "runtime/comm/mesh.h"
#include "runtime/comm/world.h"
#include "runtime/train/report/description.h"

namespace ddptrain {

std::size_t bytes_of(const Description& description);  ///< Of its memory.

/// The description of a run of this mesh, with what rank `rank` keeps: what the components say, and what the program
/// knows except the flags that decide the parameters. `tree_bytes`: StepCommunication::tree_bytes().
Description describe_run(const Options& options, const MeshShape& mesh, int rank, DeviceKind device, const Model& model,
                         const ParameterArena& arena, std::size_t tree_bytes);

/// The same of a model and an arena that are made on paper, after Workload::load(). No GPU is touched. Not collective.
Description describe_on_paper(const Options& options, Workload& workload, const MeshShape& mesh, int rank,
                              DeviceKind device);

/// Makes model and arena of each stage on paper, on rank 0, and prints what they say of the stage that keeps most: as
/// JSON, or the memory as a table. Of options.ranks ranks, or of the world's. No GPU is touched. Collective; what is
/// wrong is the UsageError that training would give.
void print_description(const World& world, CommandLine command_line);

}  // namespace ddptrain
