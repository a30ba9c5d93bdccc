#pragma once

#include "launch/app/flags/options.h"
#include "runtime/comm/mesh.h"
#include "runtime/comm/world.h"
#include "runtime/train/report/description.h"

namespace ddptrain {

std::size_t bytes_of(const Description& description);  ///< The memory of a rank.

/// Describes a run with this mesh: the memory of rank `rank`, as the components report it, and all facts but the flags
/// that decide the parameters. `tree_bytes` is StepCommunication::tree_bytes().
Description describe_run(const Options& options, const MeshShape& mesh, int rank, DeviceKind device, const Model& model,
                         const ParameterArena& arena, std::size_t tree_bytes);

/// The same with a model and an arena on the meta device. It uses no GPU. Call it after Workload::load(). Not
/// collective.
Description describe_on_meta(const Options& options, Workload& workload, const MeshShape& mesh, int rank,
                             DeviceKind device);

/// Rank 0 makes model and arena of each stage on the meta device, and prints the description of the stage with the most
/// memory: as JSON, or its memory as a table. The job has options.ranks ranks; 0: as many as the world. It uses no GPU.
/// UsageError as in training. Collective.
void print_description(const World& world, CommandLine command_line);

}  // namespace ddptrain
