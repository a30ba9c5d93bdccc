#include "runtime/comm/mesh.h"

#include "runtime/core/error.h"
#include "runtime/core/text.h"

namespace ddptrain {

MeshShape mesh_of(int ranks, int stages) {
  if (ranks % stages != 0) {
    usage_error("--pp {} on {}: every replica has {} stages, a rank each. Start a multiple of {} ranks.", stages,
                counted(ranks, "rank"), stages, stages);
  }
  return {stages, ranks / stages};
}

Mesh::Mesh(const World& job, const MeshShape& shape) : job_(job), shape_(shape) {
  if (shape.stages == 1) return;
  replicas_ = job.split(stage());
  stages_ = job.split(shape.replica_of(job.rank()));
}

}  // namespace ddptrain
