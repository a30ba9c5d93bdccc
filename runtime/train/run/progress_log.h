#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <mutex>
#include <string>

#include "runtime/core/log.h"
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

/// Shows the progress of a run while the object lives. On a terminal it is a bar that rewrites itself. Otherwise a line
/// of the log is written each `interval` at first, later each time a tenth more time has passed, but at least once in
/// six intervals. `watch` and the default logger outlive it. It uses a thread that calls neither MPI nor a device.
class ProgressLog {
 public:
  struct Plan {
    std::int64_t first = 0;  ///< Steps that were done before this run (resume).
    std::int64_t steps = 0;  ///< All steps of the run.
    std::int64_t steps_per_epoch = 1;
    std::int64_t epochs = 1;
    double units_per_step = 0.0;        ///< On all ranks together.
    std::string unit;                   ///< Such as images.
    bool line_per_logged_step = false;  ///< logged() writes a line of the log, on a terminal, too.
  };

  ProgressLog(const Watch& watch, Plan plan, std::chrono::milliseconds interval);
  ~ProgressLog();
  ProgressLog(const ProgressLog&) = delete;
  ProgressLog& operator=(const ProgressLog&) = delete;

  /// `steps_per_second`: 0: not known.
  void logged(std::int64_t step, double loss, double steps_per_second);

 private:
  using Clock = std::chrono::steady_clock;

  void look();
  std::int64_t step() const;
  std::string text(double rate) const;
  std::string training_text(std::int64_t step, double rate) const;
  std::string with_bar(const std::string& text) const;

  const Watch& watch_;
  const Plan plan_;
  const std::chrono::milliseconds interval_;
  StatusLine* const bar_;  ///< Null without a terminal.
  const Clock::time_point start_ = Clock::now();
  std::mutex mutex_;                             ///< Of the members below.
  Clock::time_point next_ = start_ + interval_;  ///< When the next line is due, or the next rate of the bar.
  StepRate rate_;
  double shown_rate_ = 0.0;  ///< Of the bar.
  double loss_ = std::numeric_limits<double>::quiet_NaN();
  std::int64_t loss_step_ = 0;  ///< The step that ends what the loss is a mean of.
  Repeated looks_;
};

}  // namespace ddptrain
