#pragma once

#include "runtime/train/results/baseline.h"

namespace ddptrain {

/// Evaluates `result.rounds` of a job on CPUs that other programs disturb. Waits for cores are not all that they add:
/// they also take caches, memory and clocks, for a moment or for seconds. So each window is compared with the
/// baseline's window of the same half round, rank by rank, and the median of these ratios counts; the step is that of
/// the slowest rank. Cores of virtual machines also change their speed, each for itself and by a third, and no counter
/// tells: half rounds in which a rank computed more slowly than another for this reason do not count, unless nearly all
/// are of this kind. Intervals are those of a bootstrap over the rounds. The efficiency's is wider by a tenth of the
/// share of waits, because other waits may hide behind them.
void evaluate_medians(Calibration& result);

}  // namespace ddptrain
