#pragma once

#include <optional>
#include <string>

#include "runtime/comm/world.h"
#include "runtime/device/device.h"

namespace ddptrain {

/// What --device (auto, cpu or cuda) means for these ranks: GPUs only where every rank has one of its own. `gpus`: how
/// many this rank's host has for its ranks; where it is not given, CUDA is asked. Collective; throws the same
/// UsageError on all ranks.
DeviceKind choose_device(const World& world, const std::string& device, std::optional<int> gpus = std::nullopt);

/// The same UsageError on all ranks where ranks of a host have the same GPU. `pci_bus_id`: of this rank's. Collective.
void require_own_gpus(const World& world, const std::string& pci_bus_id);

}  // namespace ddptrain
