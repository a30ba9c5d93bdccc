#pragma once

#include <memory>

#include "runtime/comm/mesh_shape.h"
#include "runtime/comm/world.h"

namespace ddptrain {

/// The groups of ranks that this rank belongs to, one for each axis. If each replica is one rank, replicas() is the
/// job's world. The job's world outlives the mesh.
class Mesh {
 public:
  Mesh(const World& job, const MeshShape& shape);  ///< Collective.

  const MeshShape& shape() const { return shape_; }
  int stage() const { return shape_.stage_of(job_.rank()); }
  int tensor_rank() const { return shape_.tensor_rank_of(job_.rank()); }
  /// The ranks with this rank's stage and tensor rank. Rank i of the group is in replica i.
  const World& replicas() const { return replicas_ ? *replicas_ : job_; }
  /// The ranks with this rank's replica and tensor rank. Rank i of the group has stage i. Null with one stage.
  const World* stages() const { return stages_.get(); }
  /// The ranks with this rank's stage and replica. Rank i of the group has tensor rank i. Null if layers are not split.
  const World* tensor() const { return tensor_.get(); }
  /// The ranks with this rank's stage: they do the same work in the same order. The job's world with one stage.
  const World& stage_ranks() const { return stage_ranks_ ? *stage_ranks_ : job_; }

 private:
  const World& job_;
  MeshShape shape_;
  std::unique_ptr<World> replicas_;
  std::unique_ptr<World> stages_;
  std::unique_ptr<World> tensor_;
  std::unique_ptr<World> stage_ranks_;
};

}  // namespace ddptrain
