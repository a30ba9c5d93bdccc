#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/comm/mesh.h"
#include "runtime/train/model.h"
#include "runtime/train/step/store/parameter_arena.h"

namespace ddptrain {

/// Messages of one kind that a rank sends in a step.
struct Sent {
  std::string axis;        ///< data (gradients), gather (of the weights that ZeRO divides), pipeline or tensor
  std::string when;        ///< forward, backward, update, or use: before each pass of a unit
  std::int64_t times = 0;  ///< Collectives, or messages to another stage.
  std::int64_t bytes = 0;  ///< Of all of them together; a collective sends as a ring does.
};

/// What rank `rank` of this mesh sends in a step of `passes` micro-batches, as many as its replica has. Axes of one
/// rank send nothing. `gradient_bytes`: of all buckets, as they are sent.
std::vector<Sent> sends_of(const Model& model, const ParameterArena& arena, const MeshShape& mesh, int rank,
                           std::int64_t passes, std::int64_t gradient_bytes);

/// Of each kind, what the rank that sends most of it sends.
std::vector<Sent> most_of(const std::vector<std::vector<Sent>>& of_ranks);

}  // namespace ddptrain
