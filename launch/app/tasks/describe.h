#pragma once

#include "launch/app/flags/options.h"
#include "runtime/comm/mesh.h"
#include "runtime/comm/world.h"
#include "runtime/train/report/description.h"

namespace ddptrain {

std::size_t bytes_of(const Description& description);  ///< The memory of a rank.

/// Describes a run with this mesh: the memory of rank `rank`, as the components report it, and all facts but the flags
/// that decide the parameters. `tree_bytes` is StepCommunication::tree_bytes().
Description describe_run(const Options& options, const Workload& workload, const MeshShape& mesh, int rank,
                         DeviceKind device, const Model& model, const ParameterArena& arena, std::size_t tree_bytes);

/// The same with a model and an arena on the meta device. It uses no GPU. Call it after Workload::load(). Not
/// collective.
Description describe_on_meta(const Options& options, Workload& workload, const MeshShape& mesh, int rank,
                             DeviceKind device);

}  // namespace ddptrain
