#pragma once

#include <cstdint>
#include <vector>

#include "runtime/core/step.h"
#include "runtime/device/device.h"
#include "runtime/train/step/metric_buffers.h"

namespace ddptrain {

/// The host's side of StepLog: memory in which the device leaves the values of logged steps. A value is there once the
/// device has passed the end of its step; the host learns that from an Event and does not wait here. The newest slots()
/// logged steps are kept.
class StepRecorder {
 public:
  /// Logs each `every`th step from now on (at least 1). Captured graphs of steps may exist. Metrics, `state` (in device
  /// memory) and device outlive the steps. Waits.
  StepRecorder(std::int64_t every, const MetricBuffers& metrics, StepState* state, Device& device);

  std::int64_t every() const { return every_; }
  std::int64_t slots() const { return slots_; }
  /// Starts the clock in the order of the compute stream: call it before the first step, and after each pause.
  void start_clock();
  /// CPUs: step number `step`, the newest, ends only now.
  void end_again(std::int64_t step);

  /// The sums of each virtual rank of this rank after step number `step`, which is logged. Step numbers count from 1.
  std::vector<MetricSums> sums(std::int64_t step) const;
  double norm(std::int64_t step) const;     ///< Of the whole gradient. Valid if something has logged it.
  double seconds(std::int64_t step) const;  ///< When the step ended, by the device's clock.
  double start_seconds() const;             ///< When the clock has last been started.

 private:
  std::size_t slot(std::int64_t step) const { return static_cast<std::size_t>(step / every_ % slots_); }
  double seconds_in(std::size_t slot) const;

  std::int64_t every_;
  std::int64_t slots_;
  std::size_t ranks_;
  StepState* state_;
  Device& device_;
  Buffer sums_;         ///< [slots, ranks] MetricSums
  Buffer norms_;        ///< [slots] double
  Buffer nanoseconds_;  ///< [slots + 1]
};

}  // namespace ddptrain
