#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "runtime/core/process/repeated.h"
#include "runtime/core/process/watch.h"

namespace ddptrain {

/// Steps per second of training. Neither time in other phases counts, nor time after the last step that has ended.
class StepRate {
 public:
  explicit StepRate(std::int64_t step) : step_(step) {}  ///< At 0 seconds.

  /// `step` steps have ended at `seconds`. `trains`: the time since the last call was training.
  void note(double seconds, std::int64_t step, bool trains);
  /// The rate since the last call of take(). 0 if no step has ended.
  double take();

 private:
  double then_ = 0.0;
  std::int64_t step_;
  double open_ = 0.0;  ///< Seconds of training since the last step.
  double seconds_ = 0.0;
  std::int64_t steps_ = 0;
};

/// Logs the progress of a run while the object lives: each `interval` at first, later each time a tenth more time has
/// passed, but at least once in six intervals. `watch` outlives it. It uses a thread that calls neither MPI nor a
/// device.
class ProgressLog {
 public:
  struct Plan {
    std::int64_t first = 0;       ///< Steps that were done before this run (resume).
    std::int64_t steps = 0;       ///< All steps of the run.
    double units_per_step = 0.0;  ///< On all ranks together.
    std::string unit;             ///< Such as images.
  };

  ProgressLog(const Watch& watch, Plan plan, std::chrono::milliseconds interval);
  ProgressLog(const ProgressLog&) = delete;
  ProgressLog& operator=(const ProgressLog&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  void look();
  void write(double rate) const;
  std::int64_t step() const;

  const Watch& watch_;
  const Plan plan_;
  const std::chrono::milliseconds interval_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point next_ = start_ + interval_;  ///< When the next line is due.
  StepRate rate_;
  Repeated looks_;
};

}  // namespace ddptrain
