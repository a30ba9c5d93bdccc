#include "runtime/comm/agreed_signal.h"

#include "runtime/core/process/signal_requests.h"

namespace ddptrain {

std::optional<int> agreed_end_signal(const World& world) {
  const auto signal = static_cast<int>(world.max(SignalRequests::end()));
  return signal != 0 ? std::optional(signal) : std::nullopt;
}

}  // namespace ddptrain
