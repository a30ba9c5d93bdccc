#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>

#include "runtime/comm/world.h"
#include "runtime/device/device.h"

namespace ddptrain {

/// Cuts training into pieces after each of which the ranks can agree on what is asked of them from outside. A piece
/// takes about a third of a second. Two are queued at a time: the ranks speak to each other while the second one runs,
/// so the device does not run dry.
class StepPace {
 public:
  StepPace(const World& world, Device& device);

  std::int64_t left() const { return left_; }  ///< Steps of this piece still to be queued, above 0; agreed.
  /// `steps` have been queued, at most left(). Where that is the whole piece, waits for the one before it and returns
  /// true: it is time to agree, and then to call next_piece().
  bool queued(std::int64_t steps);
  /// Collective.
  void next_piece();

 private:
  using Clock = std::chrono::steady_clock;

  const World& world_;
  Device& device_;
  std::int64_t piece_ = 1;
  std::int64_t before_ = 0;  ///< Length of the piece before; 0: there is none.
  std::int64_t left_ = 1;
  Clock::time_point begin_ = Clock::now();
  std::deque<std::unique_ptr<Event>> ends_;
};

}  // namespace ddptrain
