#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace ddptrain {

/// For tests: rank `rank` throws before step `step`.
struct FailAt {
  int rank = 0;
  std::int64_t step = 0;
};

struct RunOptions {
  std::int64_t epochs = 1;
  std::int64_t steps = 0;                 ///< Number of steps; 0: as many as `epochs` have.
  std::optional<std::int64_t> log_every;  ///< Steps between logged steps; 0: none; empty: about 100 are logged.
  std::int64_t eval_every = 0;            ///< Steps between evaluations within an epoch; 0: none.
  std::int64_t eval_samples = 0;          ///< Maximum of an evaluation; 0: the whole test set.
  std::int64_t sample_every = 0;          ///< Steps between samples of text, also after the last step; 0: none.
  std::int64_t verify_every = 0;          ///< Steps between RunGuard::check_replicas(); 0: none.
  std::string trace;                      ///< File for a trace of a few steps after training; empty: none.
  std::function<void()> trained;  ///< Called on all ranks after the last step, before measurements change parameters.
  bool baseline = true;           ///< Measure scaling efficiency and exposed communication after training.
  double calibration_seconds = 0.0;  ///< Maximum time for the baseline measurement; 0: see calibration_limit().
  double min_seconds = 0.0;  ///< Time at least this many seconds of steps. Steps after training change only the rate.
  double progress_seconds = 10.0;  ///< Time until the first line of ProgressLog.
  std::optional<FailAt> fail_at;
};

inline std::int64_t total_steps(const RunOptions& options, std::int64_t steps_per_epoch) {
  return options.steps > 0 ? options.steps : options.epochs * steps_per_epoch;
}

/// Steps between logged steps; 0: none.
inline std::int64_t log_every(const RunOptions& options, std::int64_t steps) {
  constexpr std::int64_t kLines = 100;
  return options.log_every.value_or(std::max<std::int64_t>(1, (steps + kLines / 2) / kLines));
}

inline std::int64_t total_epochs(const RunOptions& options, std::int64_t steps_per_epoch) {
  return (total_steps(options, steps_per_epoch) + steps_per_epoch - 1) / steps_per_epoch;
}

}  // namespace ddptrain
