#pragma once

#include <cstdint>

#include "runtime/comm/world.h"
#include "runtime/device/device.h"
#include "runtime/train/replica/trainer.h"

namespace ddptrain {

/// Ends a run with wrong numbers. All ranks throw the same error.
class RunGuard {
 public:
  /// All outlive the guard.
  RunGuard(const Trainer& trainer, const World& world);

  /// Checks for a NaN or infinite loss or gradient since the last call. If there was one, throws an Error that names
  /// step and parameter. If such steps are skipped, it warns instead, and throws an Error if too many in a row were
  /// skipped. Collective; waits.
  void check_finite();
  /// Throws an Error if the loss of an evaluation after step `step` is NaN or infinite. All ranks have the same sums.
  void check_evaluation(std::int64_t step, const MetricSums& sums) const;
  /// Throws an Error with the text of differing_replicas() if replicas differ after step `step`. Collective; waits.
  void check_replicas(std::int64_t step);
  /// The number of skipped steps, as of the last check_finite().
  std::uint64_t left_out() const { return left_out_; }

 private:
  const Trainer& trainer_;
  const World& world_;
  Device& device_;
  std::uint64_t left_out_ = 0;
  std::int64_t verified_ = 0;  ///< The last step after which replicas were the same.
};

}  // namespace ddptrain
