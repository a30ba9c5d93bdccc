#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/device/device.h"
#include "runtime/topology/machine.h"

namespace ddptrain {

/// Lets NCCL start several ranks on one GPU, for --share-gpu. It changes the environment: call it before MPI starts.
void let_ranks_share_gpus();

/// The kind of device that --device (auto, cpu or cuda) means for these ranks. With `share`, auto means GPUs. Without
/// it, every rank needs its own GPU. `visible`: the number of GPUs that this rank sees; if it is not given, CUDA is
/// asked. A rank that sees one GPU may share it with other ranks of its host, which use_gpus() finds out. Collective;
/// throws the same UsageError on all ranks.
DeviceKind choose_device(const World& world, const std::string& device, bool share,
                         std::optional<int> visible = std::nullopt);

/// CUDA's number of this rank's GPU among those that it sees: the ranks of a host take them in turn.
int own_gpu(const World& world);

/// The ranks of this rank's host, in order, each with the PCI bus id that it gave. Collective.
std::vector<RankOfGpu> ranks_of_this_host(const World& world, const std::string& pci_bus_id);

/// How the ranks of a job use its GPUs.
struct GpusOfJob {
  int shared = 0;         ///< All GPUs of the job if ranks share one; 0: no rank does.
  int ranks_per_gpu = 1;  ///< The most that one GPU has.
  bool is_first = true;   ///< Whether this rank is the lowest of those that use its GPU.
};

/// Counts GPUs. `pci_bus_id`: this rank's GPU. Throws the same UsageError on all ranks if ranks share a GPU without
/// `share`. Collective.
GpusOfJob use_gpus(const World& world, const std::string& pci_bus_id, bool share);

}  // namespace ddptrain
