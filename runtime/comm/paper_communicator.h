#pragma once

#include <memory>

#include "runtime/comm/communicator.h"

namespace ddptrain {

/// Collectives that were called.
struct Called {
  std::int64_t times = 0;
  std::int64_t bytes = 0;  ///< Of all parts.
};

/// Rank `rank` of `size` ranks that need not be there, for what is described on a paper device and never trained: its
/// memory is the device's. All-gathers are added to `gathers` and do nothing; every other collective throws Error. Not
/// collective.
std::unique_ptr<Communicator> make_paper_communicator(int rank, int size, Device& device, Called& gathers);

}  // namespace ddptrain
