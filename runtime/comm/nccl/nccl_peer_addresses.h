#pragma once

#include "runtime/comm/nccl/nccl_compat.h"

#include <functional>
#include <vector>

namespace ddptrain {

/// Whether NCCL has mapped the memory of all ranks behind `window`. Without peer-to-peer access, or with cuMem or
/// windows turned off, it does not; ncclCommWindowRegister then succeeds without a window or with another handle.
bool is_symmetric(ncclWindow_t window);

/// The address of each rank's memory of a symmetric window for the current device. Empty if loads and stores cannot
/// reach all `ranks`, or with NCCL before 2.28. Waits. Throws Error.
std::vector<void*> nccl_peer_addresses(ncclComm_t comm, ncclWindow_t window, int ranks);

/// Tries the addresses: a kernel of each rank writes to all of them, and each rank checks what it has received. The
/// memory, at least 8 bytes per rank, is zero before and after. `barrier` waits for all ranks. Collective; waits.
/// Throws Error.
bool peers_exchange(const std::vector<void*>& addresses, int rank, const std::function<void()>& barrier);

}  // namespace ddptrain
