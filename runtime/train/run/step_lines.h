#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/train/replica/trainer.h"
#include "runtime/train/results/steps.h"

namespace ddptrain {

/// The results of logged steps, each `every`th one. The device records them, and the host collects them later, so the
/// queue of steps has no gap.
class StepLines {
 public:
  enum class Norms : std::uint8_t {
    all,    ///< Each line has the norm of the gradient.
    cheap,  ///< Lines have the norm as far as it takes a negligible share of the time: see choose_norms().
  };

  /// The run begins after `step` steps. `logged`: the total of the epoch's training sums at the last line, if a
  /// checkpoint has been restored. References outlive the object. Waits.
  StepLines(Trainer& trainer, const World& world, std::int64_t every, Norms norms, std::int64_t step,
            const MetricSums& logged);

  std::int64_t every() const { return recorder_.every(); }
  /// Maximum of steps between two calls of take().
  std::int64_t most_queued() const { return every() * (recorder_.slots() / 2); }
  /// Times the norm of the gradient, and decides which lines have it. `step_seconds`: of a step, the same on all ranks.
  /// Call it after a step has ended. Collective; waits.
  void choose_norms(double step_seconds);

  /// The clock of the lines starts after `step` steps: call it before the first step, and after each pause, when all
  /// lines have been taken.
  void start_clock(std::int64_t step);
  /// The next step after `step` at which the host must call queued().
  std::int64_t next_stop(std::int64_t step) const;
  /// The steps up to `step`, all of them in epoch `epoch`, are queued. Does not wait on GPUs. Collective.
  void queued(std::int64_t step, std::int64_t epoch);
  /// The results of the logged steps up to `step`, which the device has passed, that have not been taken. Collective.
  std::vector<StepResult> take(std::int64_t step);
  /// The line of the last step before a resume: its results, as far as the checkpoint has them. Collective; waits.
  StepResult resumed_line(std::int64_t step, std::int64_t epoch);
  /// The training sums have been taken.
  void end_epoch() { logged_ = logged_before_ = {}; }
  /// The total of the epoch's training sums at the last line before step number `step`, which is the newest step.
  const MetricSums& logged_before(std::int64_t step) const { return line_step_ == step ? logged_before_ : logged_; }

 private:
  struct Pending {
    std::int64_t step;
    std::int64_t epoch;
    bool has_norm;
    double seconds_waited;  ///< By the host up to this step.
  };

  bool wants_norm(std::int64_t step) const;
  std::vector<double> step_seconds(const std::vector<Pending>& lines);
  StepResult result_of(std::int64_t step, std::int64_t epoch, const MetricSums& total);

  Trainer& trainer_;
  const World& world_;
  const bool on_cpu_;
  StepRecorder& recorder_;
  std::int64_t norm_every_ = 0;  ///< Steps between two norms; 0: none.
  std::int64_t queued_;          ///< The last step that is queued.
  std::deque<Pending> pending_;
  std::int64_t line_step_ = 0;           ///< The last line that was taken.
  MetricSums logged_;                    ///< The total of the epoch's training sums at this line.
  MetricSums logged_before_;             ///< The same at the line before.
  std::int64_t timed_step_ = 0;          ///< The last step before the interval that the next line times.
  std::optional<double> timed_seconds_;  ///< When it ended; empty: when the clock started.
  std::int64_t waited_step_;             ///< The last line, or where the clock has started.
  double seconds_waited_ = 0.0;          ///< Up to this step.
};

}  // namespace ddptrain
