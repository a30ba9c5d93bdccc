#pragma once

#include <functional>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/core/process/signal_requests.h"
#include "runtime/device/sensors.h"
#include "runtime/train/checkpoint/checkpoint_writer.h"
#include "runtime/train/groups/outer_loop.h"
#include "runtime/train/replica/trainer.h"
#include "runtime/train/report/report.h"
#include "runtime/train/results/sampled_text.h"
#include "runtime/train/run/run_options.h"

namespace ddptrain {

/// Optional parts of a run besides the trainer. A null pointer means that the part is not used.
struct RunHooks {
  CheckpointWriter* checkpoints = nullptr;
  SignalRequests* signals = nullptr;        ///< Checked between steps, and between measurements after the last step.
  const RunProgress* resumed = nullptr;     ///< The progress of the checkpoint that has been restored.
  SensorSampler* sensors = nullptr;         ///< This rank's GPU.
  std::function<void()> after_first_steps;  ///< Called after the eager steps, when the other steps are captured.
  OuterLoop* outer = nullptr;               ///< Exchanges weights with other groups.
  /// Writes texts with the weights of the moment, for RunOptions::sample_every. They are on rank 0. Collective; waits.
  std::function<std::vector<SampledText>()> sample_texts = nullptr;
};

/// Trains, evaluates after every epoch, and measures the baseline. Reports through `report`, which is null except on
/// rank 0. Error if replicas that communicate differ at the end. Before options.trained is called and before each
/// checkpoint, it also throws the errors of RunGuard::check_finite(). EndedBySignal if a signal ends the run before the
/// last step. A later one leaves out measurements, and is RunResult::end_signal.
/// RunResult::nccl and RunResult::disturbed are left empty, for the caller. Collective.
RunResult run_training(Trainer& trainer, const World& world, const RunOptions& options, Report* report,
                       const RunHooks& hooks = {});

/// Exit code of a run that a signal has ended and that can be resumed from a checkpoint (EX_TEMPFAIL of sysexits.h).
inline constexpr int kExitResumable = 75;

}  // namespace ddptrain
