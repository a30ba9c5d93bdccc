#pragma once

#include <vector>

#include "runtime/train/results/baseline.h"

namespace ddptrain {

/// A step and a step without communication, one right after the other, in seconds. Per rank.
struct StepPair {
  std::vector<double> step;
  std::vector<double> compute_step;
};

/// What communication adds to a step, in seconds. The clock of a GPU that is limited by power moves by per cents within
/// seconds, and a step without communication lowers it further. In single steps that alternate, both kinds have the
/// same clock, so the difference does not have its noise.
struct PairedDifference {
  double slowest = 0.0;          ///< Step - compute step, each of the rank that is slowest in it.
  std::vector<double> per_rank;  ///< Step - compute step of each rank.
};

/// Medians over the pairs. Neighbouring pairs were made in opposite orders, and two of them are one observation, so
/// that a drift cancels. Error without two pairs.
PairedDifference compare(const std::vector<StepPair>& pairs);

/// The observations of the pairs: two neighbours are one. Error without two pairs.
std::vector<StepGroup> groups_of(const std::vector<StepPair>& pairs);

}  // namespace ddptrain
