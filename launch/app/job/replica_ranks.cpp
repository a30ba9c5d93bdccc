#include "launch/app/job/replica_ranks.h"

namespace ddptrain {
namespace {

/// NCCL chooses the number of thread blocks: without copy engines, exchanges that are fast matter more than the
/// multiprocessors that they take.
std::unique_ptr<Communicator> connect(const World* world, Device& device, CommLibrary library, bool copy_engines) {
  if (world == nullptr) return nullptr;
  return make_communicator(*world, device,
                           {.library = library, .symmetric = copy_engines, .copy_engines = copy_engines});
}

}  // namespace

CommunicatorOptions replica_communicator_options(const RunPlan& plan, const World& world) {
  CommunicatorOptions options = plan.communicator;
  if (!plan.hierarchical && world.nodes() > 1) options.host = world.rank();
  return options;
}

bool uses_nccl(const RunPlan& plan, const World& world) { return world.size() > 1 && !plan.sums_with_mpi; }

ReplicaRanks::ReplicaRanks(const Mesh& mesh, Device& device, const RunPlan& plan, bool training)
    : mesh_(mesh),
      stages_(connect(mesh.stages(), device, plan.communicator.library, false)),
      layers_(connect(mesh.tensor(), device, plan.communicator.library, training && plan.communicator.symmetric)) {
  if (layers_) group_ = std::make_unique<TensorGroup>(*mesh.tensor(), *layers_, device);
}

}  // namespace ddptrain
