#pragma once

#include <string>
#include <vector>

#include "runtime/comm/world.h"

namespace ddptrain {

/// A property that all hosts of a job should share.
struct HostFact {
  std::string what;    ///< Its name, such as "the program".
  std::string value;   ///< Its value on this host. Empty: unknown, which counts as equal.
  std::string advice;  ///< What to do if it differs.
};

/// The facts of one host.
struct HostFacts {
  std::string host;
  std::vector<HostFact> facts;
};

/// A line for each host that differs from most others, with its name and what to do. Empty: nothing differs.
std::vector<std::string> host_differences(const std::vector<HostFacts>& hosts);

/// The value that most hosts have. If several values are equally frequent, the first of them.
std::string usual_value(const std::vector<HostFacts>& hosts, std::size_t fact);

/// The facts of all hosts of these ranks (program, libraries, driver, GPUs, networks, MTU) and `more`.
/// Starts neither CUDA nor NVML, and takes well under a second. Collective.
std::vector<HostFacts> gather_host_facts(const World& world, const std::vector<HostFact>& more = {});

/// The lines of shared_nic_warnings() of all hosts. `pci_bus_id` is this rank's GPU. Collective.
std::vector<std::string> shared_network_cards(const World& world, const std::string& pci_bus_id);

}  // namespace ddptrain
