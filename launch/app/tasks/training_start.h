#pragma once

#include <optional>
#include <string>

#include "launch/app/job/folder_lock.h"
#include "launch/app/job/job.h"
#include "launch/app/plan/run_plan.h"
#include "runtime/train/checkpoint/checkpoint.h"

namespace ddptrain {

/// Where training starts: what a user can get wrong about it is agreed on by all ranks.
struct TrainingStart {
  /// `data` is the result of require_same_data(). Uses the current GPU. Collective.
  TrainingStart(Job& job, const PlannedMachine& machine, const std::string& data);

  std::optional<FolderLock> folder;   ///< Where the run writes checkpoints.
  std::optional<Checkpoint> resumed;  ///< From which the run goes on.
  std::optional<RunPlan> plan;        ///< Always there once the start is made.
  RunIdentity identity;
};

/// The plan of a job that trains nothing. Collective.
RunPlan plan_without_training(Job& job, const PlannedMachine& machine);

}  // namespace ddptrain
