#pragma once

#include <vector>

#include "runtime/train/results/baseline.h"

namespace ddptrain {

/// Whether rounds go on beyond the limit of time: the interval of the efficiency is wider than 5 points.
bool is_wide(const std::vector<CalibrationRound>& rounds);

/// Whether rounds end early: the interval of the efficiency was narrower than a point after three rounds in a row, from
/// the eighth round on.
bool is_narrow(const std::vector<CalibrationRound>& rounds);

/// Marks the rounds in which a clock is more than 3% below its highest.
void mark_fallen_clocks(std::vector<CalibrationRound>& rounds);

/// Evaluates the means of the rounds, and their groups of alternating steps if they have any. Error without rounds.
void evaluate(Calibration& result);

}  // namespace ddptrain
