#pragma once

#include "launch/app/job/rank_device.h"
#include "launch/app/plan/run_plan.h"
#include "launch/app/tasks/training_start.h"
#include "launch/app/tasks/tuned_cache.h"
#include "runtime/comm/communicator.h"
#include "runtime/train/report/report.h"

namespace ddptrain {

/// Trains from `start` to the end, and reports. `metrics` is null but on rank 0, or where nothing is to be written;
/// `tuned` is null where --tune has nothing to choose. Collective.
void train(Job& job, RankDevice& rank, const TrainingStart& start, Communicator& communicator, MetricsFile* metrics,
           TunedCache* tuned);

}  // namespace ddptrain
