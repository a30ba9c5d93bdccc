#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/comm/world.h"
#include "runtime/train/checkpoint/checkpoint_writer.h"
#include "runtime/train/report/report.h"
#include "runtime/train/results/checkpoints.h"

namespace ddptrain {

/// Decides when checkpoints are due, and reports what came of them. Without a writer none is due.
class RunCheckpoints {
 public:
  /// `writer`: null without checkpoints. `report`: null except on rank 0. `steps`: all steps of the run. `step`: the
  /// steps that are done. References outlive the object.
  RunCheckpoints(CheckpointWriter* writer, const World& world, Report* report, std::int64_t steps, std::int64_t step);

  bool enabled() const { return writer_ != nullptr; }
  /// A checkpoint is due after the step that is queued. All ranks call it together.
  void ask() { asked_ = true; }
  /// Whether a checkpoint is due after step number `step`; the same on all ranks.
  bool is_due(std::int64_t step) const;
  /// Whether a checkpoint is due by the clock of this rank.
  bool is_due_by_time() const;
  /// The next step after `step` at which a checkpoint is due by the number of steps.
  std::int64_t next_stop(std::int64_t step) const;

  /// Waits for the checkpoint that is being written, if any, and warns if that takes long. Collective.
  void wait_for_previous();
  /// Starts to write a checkpoint after all steps queued so far. The one before is complete. Collective.
  void start(RunProgress progress);
  /// Reports a checkpoint that has ended. Error if it has failed and the run is to stop then. Collective.
  void poll();
  /// Waits for the last checkpoint and reports it, with the same Error. Needs a writer. Collective.
  void wait();

  const std::string& newest() const { return newest_; }  ///< The newest complete one of this run; empty: none.
  /// The step of the complete one before it: the one from which a run goes on if the newest is damaged.
  std::optional<std::int64_t> step_before_newest() const { return step_before_newest_; }
  const std::optional<CheckpointTotals>& totals() const { return totals_; }  ///< Empty without a writer.

 private:
  using Clock = std::chrono::steady_clock;

  std::int64_t every_steps() const { return writer_ != nullptr ? writer_->options().every_steps : 0; }
  void report(const std::optional<WrittenCheckpoint>& checkpoint);

  CheckpointWriter* const writer_;
  const World& world_;
  Report* const report_;
  const std::int64_t steps_;
  bool asked_ = false;
  Clock::time_point last_time_ = Clock::now();
  std::int64_t last_step_;  ///< The step of the newest checkpoint.
  std::string newest_;
  std::optional<std::int64_t> newest_step_;
  std::optional<std::int64_t> step_before_newest_;
  std::optional<CheckpointTotals> totals_;
};

}  // namespace ddptrain
