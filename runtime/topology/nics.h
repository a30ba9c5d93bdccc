#pragma once

#include <filesystem>
#include <vector>

#include "runtime/topology/machine.h"

namespace ddptrain {

/// The network devices that have a PCI function: InfiniBand and RoCE first, each group in the order of names. A port
/// that has both an RDMA and an Ethernet name appears once, under its RDMA name.
std::vector<NicInfo> find_nics(const std::filesystem::path& sysfs = "/sys");

}  // namespace ddptrain
