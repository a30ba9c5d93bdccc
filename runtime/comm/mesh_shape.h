#pragma once

#include <string>

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

}  // namespace ddptrain
