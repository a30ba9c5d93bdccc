#pragma once

#include <memory>

#include "runtime/comm/world.h"

namespace ddptrain {

/// Sizes of the axes along which ranks divide the work. Rank r is stage r / replicas of replica r % replicas: the ranks
/// of a stage are neighbours.
struct MeshShape {
  int stages = 1;    ///< Of a pipeline: each has some units of the model.
  int replicas = 1;  ///< Each has all of the model, over its stages, and its own part of the data.

  int ranks() const { return stages * replicas; }
  int stage_of(int rank) const { return rank / replicas; }
  int replica_of(int rank) const { return rank % replicas; }
};

/// UsageError where the ranks do not divide among the stages.
MeshShape mesh_of(int ranks, int stages);

/// The groups of a rank along the axes of the mesh. An axis of all ranks, or of one, has no group of its own. The job's
/// world outlives this.
class Mesh {
 public:
  Mesh(const World& job, const MeshShape& shape);  ///< Collective.

  const MeshShape& shape() const { return shape_; }
  int stage() const { return shape_.stage_of(job_.rank()); }
  /// The ranks with the same stage: rank i is of replica i.
  const World& replicas() const { return replicas_ ? *replicas_ : job_; }
  /// The ranks with the same replica: rank s is stage s. Null with one stage.
  const World* stages() const { return stages_.get(); }

 private:
  const World& job_;
  MeshShape shape_;
  std::unique_ptr<World> replicas_, stages_;
};

}  // namespace ddptrain
