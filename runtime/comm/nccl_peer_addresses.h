#pragma once

#include <nccl.h>

#include <vector>

namespace ddptrain {

/// Where the current device reaches each rank's memory of a symmetric window; empty where not all `ranks` are within
/// reach of loads and stores, and with NCCL before 2.28. Waits. Throws Error.
std::vector<void*> nccl_peer_addresses(ncclComm_t comm, ncclWindow_t window, int ranks);

}  // namespace ddptrain
