#include "runtime/train/measure/step_pairs.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/train/measure/estimate.h"

namespace ddptrain {
namespace {

double longest(const std::vector<double>& seconds) { return *std::ranges::max_element(seconds); }

/// The median of `difference` of a pair.
template <class Difference>
double median_difference(const std::vector<StepPair>& pairs, Difference difference) {
  std::vector<double> observations;
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    observations.push_back(0.5 * (difference(pairs[i]) + difference(pairs[i + 1])));
  }
  return median(std::move(observations));
}

}  // namespace

bool is_reversed(std::uint64_t pair) { return std::popcount(pair) % 2 == 1; }

PairedDifference compare(const std::vector<StepPair>& pairs) {
  DDP_CHECK(pairs.size() >= 2, "{} pairs of steps: at least 2 are needed", pairs.size());
  PairedDifference result;
  result.slowest =
      median_difference(pairs, [](const StepPair& pair) { return longest(pair.step) - longest(pair.compute_step); });
  for (std::size_t rank = 0; rank < pairs.front().compute_step.size(); ++rank) {
    result.per_rank.push_back(median_difference(
        pairs, [rank](const StepPair& pair) { return longest(pair.step) - pair.compute_step[rank]; }));
  }
  return result;
}

std::vector<StepGroup> groups_of(const std::vector<StepPair>& pairs) {
  DDP_CHECK(pairs.size() >= 2, "{} pairs of steps: at least 2 are needed", pairs.size());
  std::vector<StepGroup> groups;
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    StepGroup& group = groups.emplace_back();
    group.compute_step.resize(pairs[i].compute_step.size());
    for (const StepPair* pair : {&pairs[i], &pairs[i + 1]}) {
      const double slowest = longest(pair->compute_step);
      group.exposed += 0.5 * (longest(pair->step) - slowest);
      group.stragglers += 0.5 * (slowest - mean(pair->compute_step));
      for (std::size_t rank = 0; rank < group.compute_step.size(); ++rank) {
        group.compute_step[rank] += 0.5 * pair->compute_step[rank];
      }
    }
  }
  return groups;
}

}  // namespace ddptrain
