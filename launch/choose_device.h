#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/device/device.h"
#include "runtime/topology/machine.h"

namespace ddptrain {

/// What --device (auto, cpu or cuda) means for these ranks: GPUs only where every rank has one of its own. `visible`:
/// how many this rank sees; where it is not given, CUDA is asked. A rank that sees one only may share it with others of
/// its host: then require_own_gpus() has to be called. Collective; throws the same UsageError on all ranks.
DeviceKind choose_device(const World& world, const std::string& device, std::optional<int> visible = std::nullopt);

/// This rank's among the GPUs that it sees, by CUDA's number: the only one, or that of the local rank.
int own_gpu(const World& world);

/// The ranks of this rank's host, in order, each with the PCI bus id that it gave. Collective.
std::vector<RankOfGpu> ranks_of_this_host(const World& world, const std::string& pci_bus_id);

/// The same UsageError on all ranks where ranks of a host have the same GPU. `pci_bus_id`: of this rank's. Collective.
void require_own_gpus(const World& world, const std::string& pci_bus_id);

}  // namespace ddptrain
