#pragma once

#include <memory>

#include "runtime/comm/communicator.h"

namespace ddptrain {

/// Rank `rank` of `size` ranks that need not be there, for what is described on a paper device and never trained: its
/// memory is the device's, and every collective throws Error. Not collective.
std::unique_ptr<Communicator> make_paper_communicator(int rank, int size, Device& device);

}  // namespace ddptrain
