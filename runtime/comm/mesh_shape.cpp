#include "runtime/comm/mesh_shape.h"

#include "runtime/core/error.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

void require_rank(const MeshShape& mesh, int rank) {
  DDP_CHECK(rank >= 0 && rank < mesh.ranks(), "rank {} is not in a mesh of {} x {} x {} ranks", rank, mesh.stages,
            mesh.replicas, mesh.tensor);
}

}  // namespace

MeshShape::MeshShape(int stages, int replicas, int tensor) : stages(stages), replicas(replicas), tensor(tensor) {
  DDP_CHECK(stages >= 1 && replicas >= 1 && tensor >= 1, "a mesh of {} x {} x {} ranks", stages, replicas, tensor);
}

int MeshShape::stage_of(int rank) const {
  require_rank(*this, rank);
  return rank / (replicas * tensor);
}

int MeshShape::replica_of(int rank) const {
  require_rank(*this, rank);
  return rank / tensor % replicas;
}

int MeshShape::tensor_rank_of(int rank) const {
  require_rank(*this, rank);
  return rank % tensor;
}

std::string MeshShape::place_of(int rank) const {
  if (replica_is_one_rank()) return "";
  std::string place;
  const auto add = [&](const char* axis, int size, int index) {
    if (size > 1) place += fmt::format("{}{} {}", place.empty() ? "" : ", ", axis, index);
  };
  add("stage", stages, stage_of(rank));
  add("replica", replicas, replica_of(rank));
  add("part", tensor, tensor_rank_of(rank));
  return place;
}

MeshShape mesh_of(int ranks, int stages, int tensor) {
  DDP_CHECK(ranks >= 1 && stages >= 1 && tensor >= 1, "{} ranks, {} stages and {} parts", ranks, stages, tensor);
  const int of_replica = stages * tensor;
  if (ranks % of_replica != 0) {
    usage_error("--pp {} --tp {} on {}: every replica has {} x {} = {}. Start a multiple of {} ranks.", stages, tensor,
                counted(ranks, "rank"), counted(stages, "stage"), counted(tensor, "part"), counted(of_replica, "rank"),
                of_replica);
  }
  return {stages, ranks / of_replica, tensor};
}

}  // namespace ddptrain
