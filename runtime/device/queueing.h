#pragma once

#include <optional>

#include "runtime/device/device.h"

namespace ddptrain {

/// While it lives, the host queues work without an end of its own to wait for. The queue of a GPU holds about a
/// thousand kernels: where it is full of work that waits for other ranks, any call may wait for room. So the watch
/// counts this time as a wait. A CPU does the work itself, and does not wait.
class [[nodiscard]] Queueing {
 public:
  explicit Queueing(const Device& device) {
    if (device.kind() != DeviceKind::cpu) wait_.emplace(device.watch(), kQueueWait);
  }

  /// What the watch says meanwhile.
  static constexpr const char* kQueueWait = "room in the GPU's queue";

 private:
  std::optional<Watch::Wait> wait_;
};

}  // namespace ddptrain
