#pragma once

#include <memory>

#include "runtime/comm/communicator.h"

namespace ddptrain {

/// Collectives that were called.
struct Called {
  std::int64_t times = 0;
  std::int64_t bytes = 0;  ///< Of all shards.
};

/// Stands for rank `rank` of `size` ranks on a meta device, where a model is described and not trained. The other
/// ranks need not exist. An all-gather only counts itself in `gathers`; every other collective throws Error. allocate()
/// gives the device's memory.
std::unique_ptr<Communicator> make_meta_communicator(int rank, int size, Device& device, Called& gathers);

}  // namespace ddptrain
