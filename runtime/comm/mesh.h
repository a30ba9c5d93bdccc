#pragma once

#include <memory>

#include "runtime/comm/world.h"

namespace ddptrain {

/// The sizes of the mesh's axes, the outermost first. Rank r has stage r / (replicas * tensor), replica
/// r / tensor % replicas and part r % tensor. So the parts of a layer are on consecutive ranks.
struct MeshShape {
  int stages = 1;    ///< Pipeline stages. Each has some units of the model.
  int replicas = 1;  ///< Copies of the whole model, over all stages and parts. Each trains on its share of the data.
  int tensor = 1;    ///< Parts into which each layer is split.

  int ranks() const { return stages * replicas * tensor; }
  int stage_of(int rank) const { return rank / (replicas * tensor); }
  int replica_of(int rank) const { return rank / tensor % replicas; }
  int part_of(int rank) const { return rank % tensor; }
  /// Names the coordinates on axes larger than 1, such as "stage 1, replica 0". Empty if each replica is one rank.
  std::string place_of(int rank) const;
  bool replica_is_one_rank() const { return stages * tensor == 1; }
};

/// UsageError if stages * tensor does not divide the number of ranks.
MeshShape mesh_of(int ranks, int stages, int tensor);

/// The groups of ranks that this rank belongs to, one for each axis. No MPI communicator is made for an axis of size 1
/// or an axis with all ranks. The job's world outlives the mesh.
class Mesh {
 public:
  Mesh(const World& job, const MeshShape& shape);  ///< Collective.

  const MeshShape& shape() const { return shape_; }
  int stage() const { return shape_.stage_of(job_.rank()); }
  int part() const { return shape_.part_of(job_.rank()); }
  /// The ranks with this rank's stage and part. Rank i of the group is in replica i.
  const World& replicas() const { return replicas_ ? *replicas_ : job_; }
  /// The ranks with this rank's replica and part. Rank i of the group has stage i. Null with one stage.
  const World* stages() const { return stages_.get(); }
  /// The ranks with this rank's stage and replica. Rank i of the group has part i. Null if layers are not split.
  const World* tensor() const { return tensor_.get(); }

 private:
  const World& job_;
  MeshShape shape_;
  std::unique_ptr<World> replicas_, stages_, tensor_;
};

}  // namespace ddptrain
