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
/// opposite orders, A B B A or B A A B, so that a drift cancels. The Thue-Morse sequence chooses between these two. It
/// has no period, which a swing of the clocks could have, too.
bool is_reversed(std::uint64_t pair);

/// A single step of this rank.
struct TimedStep {
  double seconds = 0.0;
  double cycles = 0.0;  ///< Of the GPU's multiprocessors; 0: not known.
};

/// The seconds of each step, if the GPU had had the mean clock of all of them throughout. The clock of a GPU at its
/// power limit differs by per cents between neighbouring steps; the cycles of a step hardly do. The sum of the seconds
/// stays.
/// If the cycles of a step are not known, the seconds are as they were.
std::vector<double> at_mean_clock(const std::vector<TimedStep>& steps);

/// The observations of the pairs: two neighbours, from an even number on, are one. Error without two pairs. All ranks
/// are in a step equally long, so their mean counts; a step without communication is that of its slowest rank.
///
/// The clock of a GPU that is limited by power moves by per cents within seconds. In single steps that alternate, both
/// kinds of step have about the same clock.
std::vector<StepGroup> groups_of(const std::vector<StepPair>& pairs);

/// Per rank: the step without communication next to a step of `step` seconds.
std::vector<double> compute_steps(double step, const std::vector<StepGroup>& groups);

}  // namespace ddptrain
