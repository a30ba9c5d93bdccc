#pragma once

#include <string>

namespace ddptrain {

/// The sizes of the mesh's axes, the outermost first. Rank r has stage r / (replicas * tensor), replica
/// r / tensor % replicas and tensor rank r % tensor. So the slices of a layer are on consecutive ranks.
struct MeshShape {
  int stages = 1;    ///< Pipeline stages. Each has some units of the model.
  int replicas = 1;  ///< Copies of the whole model, over all stages and slices. Each trains on its share of the data.
  int tensor = 1;    ///< Slices into which each layer is split.

  MeshShape() = default;
  MeshShape(int stages, int replicas, int tensor);  ///< Error if a size is below 1.

  int ranks() const { return stages * replicas * tensor; }
  // The place of a rank. Error if the mesh has no such rank.
  int stage_of(int rank) const;
  int replica_of(int rank) const;
  int tensor_rank_of(int rank) const;
  /// Names the coordinates on axes larger than 1, such as "stage 1, replica 0". Empty if each replica is one rank.
  std::string place_of(int rank) const;
  bool replica_is_one_rank() const { return stages * tensor == 1; }
};

/// UsageError if stages * tensor does not divide the number of ranks. All three are at least 1.
MeshShape mesh_of(int ranks, int stages, int tensor);

}  // namespace ddptrain
