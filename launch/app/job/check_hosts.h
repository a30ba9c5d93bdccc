#pragma once

#include <string>
#include <vector>

#include "runtime/comm/world.h"

namespace ddptrain {

/// Something that the hosts of a job should have in common.
struct HostFact {
  std::string what;    ///< "the program"
  std::string value;   ///< Here, in words; empty: unknown, which is no difference.
  std::string advice;  ///< What to do where it differs.
};

/// The facts of one host, and its clock.
struct HostFacts {
  std::string host;
  std::vector<HostFact> facts;
  double clock = 0.0;  ///< Seconds since 1970, at a moment that all hosts share.
};

/// Of this host: program, libraries, driver, GPUs, networks, MTU. It starts neither CUDA nor NVML.
std::vector<HostFact> facts_of_this_host();

/// A line for each host that differs from most others, with its name and what to do. Empty: nothing differs.
std::vector<std::string> host_differences(const std::vector<HostFacts>& hosts);

/// What most hosts have.
std::vector<HostFact> usual_facts(const std::vector<HostFacts>& hosts);

/// The facts of the hosts of these ranks, each with `more`; on rank 0. Takes well under a second. Collective.
std::vector<HostFacts> gather_host_facts(const World& world, const std::vector<HostFact>& more = {});

/// How they differ; on rank 0. Collective.
std::vector<std::string> check_hosts(const World& world);

/// Lines of shared_nic_warnings() of all hosts, on rank 0. `pci_bus_id`: of this rank's GPU. Collective.
std::vector<std::string> shared_network_cards(const World& world, const std::string& pci_bus_id);

}  // namespace ddptrain
