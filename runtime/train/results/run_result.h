#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device/sensors.h"
#include "runtime/diagnostics/nccl_log.h"
#include "runtime/train/results/baseline.h"
#include "runtime/train/results/checkpoints.h"
#include "runtime/train/results/outer.h"
#include "runtime/train/results/rate.h"
#include "runtime/train/results/steps.h"

namespace ddptrain {

struct RunResult {
  std::vector<EpochResult> epochs;
  Rate rate;
  double startup_seconds = 0.0;  ///< From the start of the process to the end of the first step.
  double train_seconds = 0.0;    ///< The time of all steps.
  /// Share of the time of steps in which ranks waited for other pipeline stages, mean over the ranks. Empty on GPUs,
  /// where the host does not wait.
  std::optional<double> waits_for_stages;
  std::optional<double> in_split_layers;     ///< The same for collectives of ranks that split layers.
  std::optional<double> waits_for_replicas;  ///< The same for gradients and weights of other replicas.
  std::uint64_t nonfinite_steps = 0;         ///< Steps that were skipped because of a NaN or infinite value.
  std::string parameter_hash;
  std::optional<Calibration> calibration;
  Disturbance disturbed;  ///< From the first to the last step and measurement. A calibration has its own.
  std::optional<NcclUsage> nccl;
  ClockWindows clocks;                          ///< The windows of training.
  std::vector<SensorWindow> gpus;               ///< Per rank: its sensors during training. Empty without sensors.
  std::optional<CheckpointTotals> checkpoints;  ///< Empty if no checkpoints are asked for.
  std::optional<OuterTotals> outer;             ///< Empty if the run has no groups.
  /// A signal that asked for the end after the last step, so that measurements were left out.
  std::optional<int> end_signal;
};

}  // namespace ddptrain
