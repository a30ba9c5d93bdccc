#pragma once

#include <cstdint>
#include <optional>

#include "runtime/comm/world.h"
#include "runtime/train/replica/trainer.h"
#include "runtime/train/report/report.h"
#include "runtime/train/run/progress_log.h"
#include "runtime/train/run/run_guard.h"
#include "runtime/train/run/run_options.h"
#include "runtime/train/run/step_lines.h"
#include "runtime/train/run/window_times.h"

namespace ddptrain {

/// Collects the results of logged steps (StepLines) and gives them to the report, to the progress log, and with
/// --log-every to the meter. Does nothing for steps if none is logged.
class RunLines {
 public:
  struct Start {
    std::int64_t step = 0;  ///< Steps that were done before this run.
    MetricSums logged;      ///< RunProgress::logged_sums of the checkpoint.
  };

  /// `report`: null except on rank 0, which alone shows progress. References outlive the object. Collective.
  RunLines(Trainer& trainer, const World& world, const RunOptions& options, Report* report, WindowTimes& times,
           RunGuard& guard, const Start& start);

  /// Maximum of steps that are queued between two calls of write().
  std::int64_t most_queued() const;
  /// See StepLines.
  void start_clock(std::int64_t step);
  void choose_norms(double step_seconds);
  std::int64_t next_stop(std::int64_t step) const;
  void queued(std::int64_t step, std::int64_t epoch);

  /// Writes the logged steps up to `step`, which the device has passed. Error if a loss is not finite and steps are not
  /// skipped: RunGuard::check_finite(). Collective.
  void write(std::int64_t step);
  /// Writes the line of step number `step` again after a resume, if it is a logged one. Collective; waits.
  void write_resumed(std::int64_t step, std::int64_t epoch);
  /// The training sums have been taken.
  void end_epoch();
  /// See RunProgress::logged_sums. `step` is the newest step.
  MetricSums logged_before(std::int64_t step) const;

 private:
  void write_line(const StepResult& result);

  Trainer& trainer_;
  const World& world_;
  const RunOptions& options_;
  Report* report_;
  WindowTimes& times_;
  RunGuard& guard_;
  std::optional<StepLines> lines_;       ///< Empty: no step is logged.
  std::optional<ProgressLog> progress_;  ///< On rank 0.
};

}  // namespace ddptrain
