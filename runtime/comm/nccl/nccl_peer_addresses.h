#pragma once

#include "runtime/comm/nccl/nccl_compat.h"

#include <functional>
#include <vector>

namespace ddptrain {

/// Whether NCCL has mapped the memory of all ranks behind `window`. Where it has not (no peer-to-peer access, cuMem or
/// windows turned off), ncclCommWindowRegister succeeds all the same, with no window or the handle of a registration.
bool is_symmetric(ncclWindow_t window);

/// Where the current device reaches each rank's memory of a symmetric window; empty where not all `ranks` are within
/// reach of loads and stores, and with NCCL before 2.28. Waits. Throws Error.
std::vector<void*> nccl_peer_addresses(ncclComm_t comm, ncclWindow_t window, int ranks);

/// Whether a kernel of each rank has written to the memory of all `addresses` what the others find there. The memory
/// (8 bytes per rank at least) is zero before and after. Collective: `barrier` waits for all ranks. Waits. Throws
/// Error.
bool peers_exchange(const std::vector<void*>& addresses, int rank, const std::function<void()>& barrier);

}  // namespace ddptrain
