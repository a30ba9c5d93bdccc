#include "runtime/train/measure/step_pairs.h"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "runtime/core/error.h"
#include "runtime/train/measure/estimate.h"

namespace ddptrain {
namespace {

double longest(const std::vector<double>& seconds) { return *std::ranges::max_element(seconds); }

}  // namespace

bool is_reversed(std::uint64_t pair) { return std::popcount(pair) % 2 == 1; }

std::vector<double> at_mean_clock(const std::vector<TimedStep>& steps) {
  double seconds = 0.0;
  double cycles = 0.0;
  for (const TimedStep& step : steps) {
    seconds += step.seconds;
    cycles += step.cycles;
  }
  const bool known = std::ranges::all_of(steps, [](const TimedStep& step) { return step.cycles > 0.0; });
  std::vector<double> result;
  for (const TimedStep& step : steps) result.push_back(known ? step.cycles * seconds / cycles : step.seconds);
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
      group.exposed += 0.5 * (mean(pair->step) - slowest);
      group.stragglers += 0.5 * (slowest - mean(pair->compute_step));
      for (std::size_t rank = 0; rank < group.compute_step.size(); ++rank) {
        group.compute_step[rank] += 0.5 * pair->compute_step[rank];
      }
    }
  }
  return groups;
}

std::vector<double> compute_steps(double step, const std::vector<StepGroup>& groups) {
  std::vector<double> result;
  for (std::size_t rank = 0; rank < groups.front().compute_step.size(); ++rank) {
    std::vector<double> less;
    for (const StepGroup& group : groups) {
      less.push_back(group.exposed + group.stragglers + mean(group.compute_step) - group.compute_step[rank]);
    }
    result.push_back(step - estimate_trimmed_mean(less).value);
  }
  return result;
}

}  // namespace ddptrain
