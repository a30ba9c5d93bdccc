#pragma once

#include "runtime/train/measure/calibration.h"

namespace ddptrain {

/// Evaluates `result.rounds` of a job that other programs disturbed. What they do only adds time, and most of what they
/// add is not in the waits for cores: caches, memory, cores that share a clock. So every quantity is the mean of the
/// fastest third of its windows, rank by rank, and the step is the slowest rank's. Intervals are those of a bootstrap
/// over the rounds. The efficiency's is wider, because the waits for cores that were taken out may hide other waits: by
/// a tenth of their share of the time.
void evaluate_fastest_rounds(Calibration& result);

}  // namespace ddptrain
