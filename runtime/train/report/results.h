#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device/sensors.h"

namespace ddptrain {

/// Whether exp(loss) is a perplexity: if models of this unit predict text.
inline bool has_perplexity(const std::string& unit) { return unit == "tokens"; }

/// Results of the steps since the last logged step.
struct StepResult {
  std::int64_t epoch = 0;               ///< From 1.
  std::int64_t step = 0;                ///< Steps done since the start.
  std::int64_t samples = 0;             ///< Samples of all ranks since the start.
  double loss = 0.0;                    ///< Mean.
  double learning_rate = 0.0;           ///< Of the last step.
  std::optional<double> gradient_norm;  ///< Of the last step, before clipping.
  std::optional<double> samples_per_second;
  std::optional<double> step_seconds;
  std::optional<double> exposed_comm_seconds;  ///< Per step; CPUs only.
  std::vector<SensorWindow> gpus;              ///< Per rank; empty without sensors.
};

struct EpochResult {
  std::int64_t epoch = 0;  ///< From 1.
  std::int64_t step = 0;   ///< Steps done since the start.
  double train_loss = 0.0;
  double train_accuracy = 0.0;
  double test_loss = 0.0;
  double test_accuracy = 0.0;
  double samples_per_second = 0.0;                              ///< NaN if this process has run none of its steps.
  double last_loss = std::numeric_limits<double>::quiet_NaN();  ///< The last step's; NaN if another process ran it.
};

/// The outcome of a checkpoint; the same on all ranks.
struct WrittenCheckpoint {
  std::int64_t step = 0;
  std::string path;
  std::uint64_t bytes = 0;     ///< The sum over all ranks.
  double pause_seconds = 0.0;  ///< How long training paused on the slowest rank.
  double write_seconds = 0.0;  ///< How long writing took after that, overlapped with training.
  std::string error;           ///< Empty: the checkpoint is complete.
};

struct CheckpointTotals {
  std::int64_t written = 0;
  std::int64_t failed = 0;
  std::string error;                 ///< Why the last one failed; empty if it was written.
  std::uint64_t bytes = 0;           ///< The size of one checkpoint.
  double pause_seconds = 0.0;        ///< The longest pause of training.
  double pause_seconds_total = 0.0;  ///< All together.
  double write_seconds = 0.0;        ///< The longest write, while training goes on.

  void add(const WrittenCheckpoint& checkpoint) {
    ++(checkpoint.error.empty() ? written : failed);
    error = checkpoint.error;
    bytes = checkpoint.bytes;
    pause_seconds = std::max(pause_seconds, checkpoint.pause_seconds);
    pause_seconds_total += checkpoint.pause_seconds;
    write_seconds = std::max(write_seconds, checkpoint.write_seconds);
  }
};

}  // namespace ddptrain
