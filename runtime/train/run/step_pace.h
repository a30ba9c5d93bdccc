#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>

#include "runtime/comm/world.h"
#include "runtime/device/device.h"

namespace ddptrain {

/// Divides training into pieces of about a third of a second. After each piece the ranks agree on signals and due
/// checkpoints. Two pieces are queued at a time: the ranks agree while the second one runs, so the device is never
/// idle.
class StepPace {
 public:
  /// `most`: maximum length of a piece, in steps.
  StepPace(const World& world, Device& device, std::int64_t most = std::numeric_limits<std::int64_t>::max());

  std::int64_t left() const { return left_; }  ///< Steps of this piece that are not queued; above 0, same on all ranks.
  /// Call it after `steps` steps have been queued, at most left(). If the piece is complete, waits for the piece before
  /// it and returns true: the ranks must now agree and call next_piece().
  bool queued(std::int64_t steps);
  /// Collective.
  void next_piece();

 private:
  using Clock = std::chrono::steady_clock;

  const World& world_;
  Device& device_;
  const std::int64_t most_;
  std::int64_t piece_ = 1;
  std::int64_t before_ = 0;  ///< Length of the piece before; 0: none.
  std::int64_t left_ = 1;
  Clock::time_point begin_ = Clock::now();
  std::deque<std::unique_ptr<Event>> ends_;
};

}  // namespace ddptrain
