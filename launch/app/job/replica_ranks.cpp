#include "launch/app/job/replica_ranks.h"

namespace ddptrain {
namespace {

std::unique_ptr<Communicator> connect(const World* world, Device& device, CommLibrary library) {
  if (world == nullptr) return nullptr;
  // NCCL's choice of thread blocks: nothing is computed at the same time that these would hold up.
  return make_communicator(*world, device, {.library = library, .symmetric = false});
}

}  // namespace

CommunicatorOptions replica_communicator_options(const RunPlan& plan, const World& world) {
  CommunicatorOptions options = plan.communicator;
  if (!plan.hierarchical && world.nodes() > 1) options.host = world.rank();
  return options;
}

bool uses_nccl(const RunPlan& plan, const World& world) { return world.size() > 1 && !plan.sums_with_mpi; }

ReplicaRanks::ReplicaRanks(const Mesh& mesh, Device& device, const RunPlan& plan)
    : mesh_(mesh),
      stages_(connect(mesh.stages(), device, plan.communicator.library)),
      layers_(connect(mesh.tensor(), device, plan.communicator.library)) {
  if (layers_) group_ = std::make_unique<TensorGroup>(*mesh.tensor(), *layers_, device);
}

}  // namespace ddptrain
