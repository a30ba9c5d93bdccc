#pragma once

#include <filesystem>
#include <vector>

#include "runtime/topology/machine.h"

namespace ddptrain {

/// The network devices behind a PCI function, InfiniBand and RoCE first, each group by name. A port of an RDMA device
/// that also has an Ethernet name is listed once, under the RDMA name.
std::vector<NicInfo> find_nics(const std::filesystem::path& sysfs = "/sys");

}  // namespace ddptrain
