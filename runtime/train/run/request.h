#pragma once

#include <functional>
#include <optional>

#include "runtime/comm/world.h"
#include "runtime/core/process/signal_requests.h"

namespace ddptrain {

/// What a rank asks of all ranks between two pieces of training.
struct Request {
  bool checkpoint = false;
  std::optional<int> end_signal;  ///< The signal that asks for the end, after a checkpoint.
};

/// What this rank asks: for a checkpoint if one is due by its clock or a signal asks for it, and for the end if a
/// signal asks for that. `signals` may be null.
Request request_of_rank(const SignalRequests* signals, bool checkpoint_is_due);

/// What the ranks ask together. Among several end signals the one with the highest number counts. `progress` is called
/// while this rank waits for the others. Collective.
Request agree(const Request& mine, const World& world, const std::function<void()>& progress);

}  // namespace ddptrain
