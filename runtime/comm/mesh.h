#pragma once

#include <memory>

#include "runtime/comm/world.h"

namespace ddptrain {

/// Sizes of the axes along which ranks divide the work, the outermost first: rank r is part r % tensor of stage
/// r / (replicas * tensor) of replica r / tensor % replicas. The ranks that split layers are neighbours.
struct MeshShape {
  int stages = 1;    ///< Of a pipeline: each has some units of the model.
  int replicas = 1;  ///< Each has all of the model, over its stages, and its own part of the data.
  int tensor = 1;    ///< Ranks among which each layer of a stage is split.

  int ranks() const { return stages * replicas * tensor; }
  int stage_of(int rank) const { return rank / (replicas * tensor); }
  int replica_of(int rank) const { return rank / tensor % replicas; }
  int part_of(int rank) const { return rank % tensor; }
  /// Such as "stage 1, replica 0": the axes of several ranks. Empty if replicas are ranks.
  std::string place_of(int rank) const;
  bool replica_is_one_rank() const { return stages * tensor == 1; }
};

/// UsageError where the ranks do not divide among stages and parts.
MeshShape mesh_of(int ranks, int stages, int tensor);

/// The groups of a rank along the axes of the mesh. An axis of all ranks, or of one, has no group of its own. The job's
/// world outlives this.
class Mesh {
 public:
  Mesh(const World& job, const MeshShape& shape);  ///< Collective.

  const MeshShape& shape() const { return shape_; }
  int stage() const { return shape_.stage_of(job_.rank()); }
  int part() const { return shape_.part_of(job_.rank()); }
  /// The ranks with the same part of the same stage: rank i is of replica i.
  const World& replicas() const { return replicas_ ? *replicas_ : job_; }
  /// The ranks with the same part of the same replica: rank s is stage s. Null with one stage.
  const World* stages() const { return stages_.get(); }
  /// The ranks with the same stage of the same replica: rank t has part t. Null where layers are not split.
  const World* tensor() const { return tensor_.get(); }

 private:
  const World& job_;
  MeshShape shape_;
  std::unique_ptr<World> replicas_, stages_, tensor_;
};

}  // namespace ddptrain
