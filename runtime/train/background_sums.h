#pragma once

#include <cstdint>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/train/parameter_arena.h"

namespace ddptrain {

/// Sums over ranks as large as those of a step, beside what a CPU computes in the meantime: so it shows what they take
/// from compute. Their values are zeros in memory of their own.
class BackgroundSums {
 public:
  /// Arena, communicator and device outlive it.
  BackgroundSums(const ParameterArena& arena, Communicator& communicator, Device& device);

  /// Starts the first of the sums of `steps` steps; each of the others follows the one before. Collective.
  void start(std::uint64_t steps);
  /// Operations let the messages move from now on. The end of a step takes that back.
  void go_on();
  /// Waits for all of them.
  void finish();

 private:
  void start_next();

  const ParameterArena& arena_;
  Communicator& communicator_;
  Device& device_;
  Buffer values_;           ///< Of the largest bucket.
  std::uint64_t left_ = 0;  ///< Sums to start.
  Communicator::Ticket newest_ = 0;
};

}  // namespace ddptrain
