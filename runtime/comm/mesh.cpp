#include "runtime/comm/mesh.h"

namespace ddptrain {

Mesh::Mesh(const World& job, const MeshShape& shape) : job_(job), shape_(shape) {
  const int rank = job.rank();
  if (!shape.replica_is_one_rank()) replicas_ = job.split(stage() * shape.tensor + tensor_rank());
  if (shape.stages > 1) stages_ = job.split(rank % (shape.replicas * shape.tensor));
  if (shape.tensor > 1) tensor_ = job.split(rank / shape.tensor);
  if (shape.stages > 1) stage_ranks_ = job.split(stage());
}

}  // namespace ddptrain
