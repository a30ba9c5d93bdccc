#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "runtime/comm/world.h"
#include "runtime/core/process/signal_requests.h"
#include "runtime/device/sensors.h"
#include "runtime/train/checkpoint/checkpoint_writer.h"
#include "runtime/train/report/report.h"
#include "runtime/train/step/trainer.h"

namespace ddptrain {

/// Optional parts of a run besides the trainer. A null pointer means that the part is not used.
struct RunHooks {
  CheckpointWriter* checkpoints = nullptr;
  SignalRequests* signals = nullptr;     ///< Checked between steps, and restored after the last step.
  const RunProgress* resumed = nullptr;  ///< The progress of the checkpoint that has been restored.
  SensorSampler* sensors = nullptr;      ///< This rank's GPU.
  std::function<void()> under_way;       ///< Called after the first steps, when the other steps are captured.
};

struct RunOptions {
  std::int64_t epochs = 1;
  std::int64_t steps = 0;         ///< Number of steps; 0: as many as `epochs` have.
  std::int64_t log_every = 0;     ///< Steps between measurements within an epoch; 0: none.
  std::int64_t eval_every = 0;    ///< Steps between evaluations within an epoch; 0: none.
  std::int64_t eval_samples = 0;  ///< Maximum of an evaluation; 0: the whole test set.
  std::int64_t verify_every = 0;  ///< Steps between RunGuard::check_replicas(); 0: none.
  std::string trace;              ///< File for a trace of a few steps after training; empty: none.
  std::function<void()> trained;  ///< Called on all ranks after the last step, before measurements change parameters.
  bool baseline = true;           ///< Measure scaling efficiency and exposed communication after training.
  double calibration_seconds = 0.0;  ///< Maximum time for the baseline measurement; 0: see calibration_seconds().
  double min_seconds = 0.0;  ///< Time at least this many seconds of steps. Steps after training change only the rate.
  double progress_seconds = 10.0;  ///< Time until the first line of ProgressLog.
  int fail_rank = -1;              ///< For tests: this rank throws before step `fail_step`.
  std::int64_t fail_step = -1;
};

std::int64_t total_steps(const RunOptions& options, std::int64_t steps_per_epoch);
std::int64_t total_epochs(const RunOptions& options, std::int64_t steps_per_epoch);

/// Trains, evaluates after every epoch, and measures the baseline. Reports through `report`, which is null except on
/// rank 0. Error if replicas that communicate differ at the end. Before options.trained is called and before each
/// checkpoint, it also throws the errors of RunGuard::check_finite(). EndedBySignal if a signal ends the run.
/// RunResult::nccl is left empty. Collective.
RunResult run_training(Trainer& trainer, const World& world, const RunOptions& options, Report* report,
                       const RunHooks& hooks = {});

/// Exit code of a run that a signal has ended and that can be resumed from a checkpoint (EX_TEMPFAIL of sysexits.h).
inline constexpr int kExitResumable = 75;

}  // namespace ddptrain
