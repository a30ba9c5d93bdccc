#pragma once

#include <cstdint>
#include <vector>

#include "runtime/comm/mesh_shape.h"
#include "runtime/train/model.h"
#include "runtime/train/step/step_order.h"
#include "runtime/train/step/store/parameter_arena.h"

namespace ddptrain {

/// The messages of rank `rank` of this mesh in a step of this order. Axes of size 1 send nothing. `gradient_bytes` is
/// the size of all buckets as they are sent; 0: ranks do not communicate. `whole_matrices`: of the optimizer, see
/// OptimizerRule.
std::vector<Sent> sends_of(const Model& model, const ParameterArena& arena, const MeshShape& mesh, int rank,
                           const StepOrder& order, std::int64_t gradient_bytes, bool whole_matrices);

/// For each kind of message, the largest of the ranks' values.
std::vector<Sent> most_of(const std::vector<std::vector<Sent>>& of_ranks);

}  // namespace ddptrain
