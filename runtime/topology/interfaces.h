#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddptrain {

/// A network interface with an IPv4 address, that is up and is no loopback.
struct NetworkInterface {
  std::string network;               ///< Network of its address: "10.1.0.0/16".
  int mtu = 0;                       ///< Bytes.
  std::optional<double> speed_gbit;  ///< As the driver states it; virtual ones state none.
  bool in_use = false;               ///< This process has TCP connections to other hosts through it.
  std::uint64_t errors = 0;          ///< Receive and transmit errors since the host's start.
};

/// Interfaces of this process's network namespace.
std::vector<NetworkInterface> network_interfaces();

}  // namespace ddptrain
