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

/// What a model writes at points of its training.
struct Samples {
  std::int64_t every = 0;              ///< Steps; 0: none.
  std::function<std::string()> write;  ///< Called on rank 0 alone.
};

/// What the steps of a run go with besides the trainer; what is null is not there.
struct RunHooks {
  CheckpointWriter* checkpoints = nullptr;
  SignalRequests* signals = nullptr;     ///< Heeded at step boundaries, and restored when the steps are done.
  const RunProgress* resumed = nullptr;  ///< How far the run had come whose state has been restored.
  SensorSampler* sensors = nullptr;      ///< Of this rank's GPU.
  std::function<void()> under_way;       ///< Called when the first steps have ended, and the others are captured.
};

struct RunOptions {
  std::int64_t epochs = 1;
  std::int64_t steps = 0;         ///< In all; 0: as many as `epochs` have.
  std::int64_t log_every = 0;     ///< Steps between measurements within an epoch; 0: none.
  std::int64_t eval_every = 0;    ///< Steps between evaluations within an epoch; 0: none.
  std::int64_t eval_samples = 0;  ///< Of an evaluation at most; 0: the whole test set.
  std::int64_t verify_every = 0;  ///< Steps between RunGuard::check_replicas(); 0: none.
  std::string trace;              ///< File for a trace of a few steps after training; empty: none.
  std::function<void()> trained;  ///< Called on all ranks with the parameters that training leaves; null: nothing.
  Samples samples;
  bool baseline = true;              ///< Measure scaling efficiency and exposed communication after training ...
  double calibration_seconds = 0.0;  ///< ... for so long at most; 0: see calibration_seconds().
  double min_seconds = 0.0;     ///< Steps are timed for so long; those after training change no result but the rate.
  int fail_rank = -1;           ///< For tests: this rank throws ...
  std::int64_t fail_step = -1;  ///< ... before this step.
};

std::int64_t total_steps(const RunOptions& options, std::int64_t steps_per_epoch);
std::int64_t total_epochs(const RunOptions& options, std::int64_t steps_per_epoch);

/// Trains, evaluates after every epoch, then calibrates. Error where replicas that communicate differ in the end, and,
/// as RunGuard::check_finite(), where a loss or a gradient is NaN or infinite: before options.trained is called, and
/// before a checkpoint. EndedBySignal where a signal asks for that. Reports through `report`, which is null but on rank
/// 0. Collective. Leaves RunResult::nccl empty.
RunResult run_training(Trainer& trainer, const World& world, const RunOptions& options, Report* report,
                       const RunHooks& hooks = {});

/// Of a run that a signal has ended with a checkpoint from which it can be resumed (EX_TEMPFAIL of sysexits.h).
inline constexpr int kExitResumable = 75;

/// Since the operating system started this process.
double seconds_since_process_start();

}  // namespace ddptrain
