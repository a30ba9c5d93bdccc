#pragma once

#include <string>
#include <vector>

namespace ddptrain {

/// Messages for users whose settings NCCL refuses. Compiled without NCCL, too.

/// "2.28.3", of a number as in NCCL_VERSION_CODE.
std::string nccl_version_text(int version);

/// Where a rank's communicator runs: its host and GPU. NCCL before 2.30 takes one rank per place. In NCCL's view
/// NCCL_HOSTID, if it is set, is the host.
std::string nccl_place(int node, const std::string& pci_bus_id);

/// The variables of NCCL that the user has set, as "NCCL_ALGO=Tree, NCCL_PROTO=LL"; empty: none. Without those of
/// NCCL's log, and without those that this program sets itself.
std::string nccl_settings();

/// "NCCL", `what` it does not do ("does not start"), the settings and NCCL's own `reason`.
std::string nccl_refusal(const std::string& what, const std::string& reason);

/// Why the communicator of the ranks at `places` does not start. NCCL has one error code for a shared GPU and for a
/// setting that it does not know: the places tell them apart. `version` of NCCL as in NCCL_VERSION_CODE.
std::string nccl_does_not_start(int version, std::vector<std::string> places, const std::string& reason);

}  // namespace ddptrain
