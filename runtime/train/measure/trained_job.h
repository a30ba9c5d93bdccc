#pragma once

#include <memory>

#include "runtime/train/measure/calibration.h"

namespace ddptrain {

/// The job of `trainer` after training. Its parameters change. `step_seconds` is about the time of a step. `sensors`
/// may be null. All arguments outlive the job.
std::unique_ptr<TimedJob> make_trained_job(Trainer& trainer, const World& world, SensorSampler* sensors,
                                           double step_seconds);

}  // namespace ddptrain
