#include "launch/app/job/replica_ranks.h"

#include <optional>

namespace ddptrain {
namespace {

std::unique_ptr<Communicator> connect(const World* world, Device& device, const Options& options) {
  if (world == nullptr) return nullptr;
  // NCCL's choice of thread blocks: nothing is computed at the same time that these would hold up.
  return make_communicator(*world, device, {.library = options.comm, .symmetric = false});
}

}  // namespace

CommunicatorOptions replica_communicator_options(const Options& options, const World& world, DeviceKind device) {
  const TrainerOptions& trainer = options.trainer;
  const bool scatters = trainer.zero > Zero::nothing || trainer.virtual_ranks > 0;
  return {.library = options.comm,
          .symmetric = options.symmetric,
          .comm_ctas = options.comm_ctas,
          .scatters_sums = scatters && trainer.overlap != OverlapMode::none,
          .bf16_between_hosts = sends_bf16_between_hosts(options, device),
          .host = options.hierarchical || world.nodes() == 1 ? std::nullopt : std::optional<int>(world.rank())};
}

ReplicaRanks::ReplicaRanks(const Mesh& mesh, Device& device, const Options& options)
    : mesh_(mesh), stages_(connect(mesh.stages(), device, options)), layers_(connect(mesh.tensor(), device, options)) {
  if (layers_) group_ = std::make_unique<TensorGroup>(*mesh.tensor(), *layers_, device);
}

}  // namespace ddptrain
