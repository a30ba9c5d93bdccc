#pragma once

#include <optional>

#include "runtime/comm/world.h"

namespace ddptrain {

/// The signal that asks this job for its end (SignalRequests::end()), on whichever ranks it arrived; of several the one
/// with the highest number. Collective.
std::optional<int> agreed_end_signal(const World& world);

}  // namespace ddptrain
