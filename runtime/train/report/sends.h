#pragma once

#include <cstdint>
#include <vector>

#include "runtime/comm/mesh_shape.h"
#include "runtime/train/model.h"
#include "runtime/train/step/store/parameter_arena.h"

namespace ddptrain {

/// What rank `rank` of this mesh sends in a step of `passes` micro-batches, as many as its replica has. Axes of one
/// rank send nothing. `gradient_bytes`: of all buckets, as they are sent.
std::vector<Sent> sends_of(const Model& model, const ParameterArena& arena, const MeshShape& mesh, int rank,
                           std::int64_t passes, std::int64_t gradient_bytes);

/// Of each kind, what the rank that sends most of it sends.
std::vector<Sent> most_of(const std::vector<std::vector<Sent>>& of_ranks);

}  // namespace ddptrain
