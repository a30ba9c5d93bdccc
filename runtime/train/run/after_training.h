#pragma once

#include "runtime/comm/world.h"
#include "runtime/device/sensors.h"
#include "runtime/train/replica/trainer.h"
#include "runtime/train/results/run_result.h"
#include "runtime/train/run/run_options.h"
#include "runtime/train/run/window_times.h"

namespace ddptrain {

/// Measures what training does not: the rate over --min-seconds, a trace, and the single-rank baseline. The steps of
/// these measurements change parameters, which nobody uses any more. A signal that asks for the end leaves out what has
/// not begun. `sensors` may be null. Needs at least one window and one epoch. Collective.
void measure_after_training(Trainer& trainer, const World& world, const RunOptions& options, SensorSampler* sensors,
                            WindowTimes& times, RunResult& result);

}  // namespace ddptrain
