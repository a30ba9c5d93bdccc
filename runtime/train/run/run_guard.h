#pragma once

#include <cstdint>

#include "runtime/comm/world.h"
#include "runtime/device/device.h"
#include "runtime/train/step/trainer.h"

namespace ddptrain {

/// Ends a run whose numbers have gone wrong, on all ranks, with an error that they have agreed on.
class RunGuard {
 public:
  /// All outlive the guard.
  RunGuard(const Trainer& trainer, const World& world);

  /// Where a loss or a gradient was NaN or infinite since the last call: Error that names step and parameter, or, where
  /// such steps are left out, a warning, and an Error when too many in a row were. Collective; waits.
  void check_finite();
  /// Error that says what differing_replicas() does. `step`: steps done. Collective; waits.
  void check_replicas(std::int64_t step);
  /// Steps that were left out, as of the last check_finite().
  std::uint64_t left_out() const { return left_out_; }

 private:
  const Trainer& trainer_;
  const World& world_;
  Device& device_;
  std::uint64_t left_out_ = 0;
  std::int64_t verified_ = 0;  ///< Steps after which replicas were last the same.
};

}  // namespace ddptrain
