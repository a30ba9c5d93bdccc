#pragma once

#include <cstdint>
#include <vector>

#include "runtime/train/results/baseline.h"

namespace ddptrain {

/// A step and a step without communication, one right after the other, in seconds. Per rank.
struct StepPair {
  std::vector<double> step;
  std::vector<double> compute_step;
};

/// Whether the step without communication comes first in pair number `pair`. Two neighbours from an even number on have
/// opposite orders, A B B A or B A A B, so that a drift cancels. The Thue-Morse sequence chooses between these two. It has
/// no period, which a swing of the clocks could have, too.
bool is_reversed(std::uint64_t pair);

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
