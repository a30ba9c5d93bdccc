#pragma once

#include <filesystem>
#include <string>
#include <vector>

/// Which network NCCL takes between hosts by its own rules (those of 2.28), without starting it.

namespace ddptrain {

/// Of `interfaces` (names of those that are up), those that NCCL takes for sockets. `chosen`: NCCL_SOCKET_IFNAME, a
/// list of prefixes, with = of whole names, with ^ of those that it shall not take; empty: by kind, with InfiniBand's
/// first and those of containers and loopback last.
std::vector<std::string> nccl_interfaces(const std::vector<std::string>& interfaces, const std::string& chosen);

/// Active InfiniBand and RoCE ports, such as mlx5_0:1, that NCCL takes. `chosen`: NCCL_IB_HCA, as above, with or
/// without ports; empty: all.
std::vector<std::string> nccl_hcas(const std::string& chosen, const std::filesystem::path& sysfs = "/sys");

}  // namespace ddptrain
