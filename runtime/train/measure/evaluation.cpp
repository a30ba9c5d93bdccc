#include "runtime/train/measure/evaluation.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <ranges>
#include <span>

#include "runtime/core/error.h"
#include "runtime/train/measure/estimate.h"

namespace ddptrain {
namespace {

constexpr std::size_t kRoundsOfAnInterval = 8;  // with fewer rounds, an interval is too often narrow by chance
constexpr std::size_t kConfirmingRounds = 3;    // rounds after which it is narrow, before it ends the rounds
constexpr double kNarrow = 0.01;                // width of an efficiency's interval that ends the rounds
constexpr double kWide = 0.05;                  // width of that interval with which rounds go on beyond the limit
constexpr double kClockFell = 0.97;

template <class Get>
std::vector<double> column(const std::vector<CalibrationRound>& rounds, Get get) {
  std::vector<double> values;
  for (const CalibrationRound& round : rounds) values.push_back(std::invoke(get, round));
  return values;
}

/// The halves of a round have their windows in opposite orders.
Estimate efficiency(std::span<const CalibrationRound> rounds) {
  std::vector<double> alone;
  std::vector<double> step;
  for (const CalibrationRound& round : rounds) {
    for (const TimedWindow& window : round.windows) {
      if (window.work == TimedWork::alone) alone.push_back(window.undelayed.front());
      if (window.work == TimedWork::step) step.push_back(std::ranges::max(window.undelayed));
    }
  }
  return estimate_alternating_ratio(alone, step);
}

/// The efficiency after each of the newest rounds: an interval may be narrow by chance, and then measuring would end.
std::vector<Estimate> newest_efficiencies(std::span<const CalibrationRound> rounds) {
  std::vector<Estimate> newest;
  while (newest.size() < kConfirmingRounds) newest.push_back(efficiency(rounds.first(rounds.size() - newest.size())));
  return newest;
}

/// If the rounds ended because the interval was narrow, with the widest of those that ended them.
Estimate final_efficiency(const std::vector<CalibrationRound>& rounds) {
  Estimate result = efficiency(rounds);
  if (!is_narrow(rounds)) return result;
  for (const Estimate& e : newest_efficiencies(rounds)) result.half_width = std::max(result.half_width, e.half_width);
  return result;
}

std::vector<double> mean_of_each_rank(const std::vector<CalibrationRound>& rounds,
                                      std::vector<double> CalibrationRound::*times) {
  std::vector<double> means((rounds.front().*times).size());
  for (const CalibrationRound& round : rounds) {
    for (std::size_t rank = 0; rank < means.size(); ++rank) {
      means[rank] += (round.*times)[rank] / static_cast<double>(rounds.size());
    }
  }
  return means;
}

/// The number of ranks that may be the slowest one: rank `slowest`, and the ranks that the rounds cannot tell from it.
std::size_t slowest_candidates(const std::vector<CalibrationRound>& rounds, std::size_t slowest) {
  std::size_t count = 0;
  for (std::size_t rank = 0; rank < rounds.front().compute_step.size(); ++rank) {
    const auto behind = [&](const CalibrationRound& r) { return r.compute_step[slowest] - r.compute_step[rank]; };
    const Estimate lead = estimate_mean(column(rounds, behind));
    if (rank == slowest || lead.contains(0.0)) ++count;
  }
  return count;
}

/// `half_width` of a difference to the slowest rank, widened because the same data chose that rank. Its variance grows
/// by as much as the variance of `chosen` exceeds that of `one`.
double widened(double half_width, double one, double chosen) {
  return std::isfinite(chosen) ? std::sqrt(half_width * half_width + chosen * chosen - one * one) : half_width;
}

/// Estimates the stragglers' part. The same rounds choose the slowest rank, so all intervals that depend on it grow.
void find_stragglers(const std::vector<CalibrationRound>& rounds, Calibration& result) {
  const std::size_t rank = result.slowest_rank;
  const auto behind =
      column(rounds, [rank](const CalibrationRound& r) { return r.compute_step[rank] - mean(r.compute_step); });
  result.stragglers = estimate_mean(behind, slowest_candidates(rounds, rank));
  const double one = estimate_mean(behind).half_width;
  const double chosen = result.stragglers.half_width;
  for (Estimate* part : {&result.exposed, &result.waiting}) part->half_width = widened(part->half_width, one, chosen);
  const double scale = 1.0 / result.communication_seconds;
  result.exposed_fraction.half_width = widened(result.exposed_fraction.half_width, scale * one, scale * chosen);
}

/// From windows: each round is an observation.
void evaluate_windows(Calibration& result) {
  const std::vector<CalibrationRound>& rounds = result.rounds;
  result.compute_step_seconds = mean_of_each_rank(rounds, &CalibrationRound::compute_step);
  result.cpu_share = mean_of_each_rank(rounds, &CalibrationRound::compute_step_cpu);
  const auto slow = std::max_element(result.compute_step_seconds.begin(), result.compute_step_seconds.end());
  const auto rank = static_cast<std::size_t>(slow - result.compute_step_seconds.begin());
  result.slowest_rank = rank;
  result.compute_step_mean_seconds = mean(result.compute_step_seconds);
  const auto compute_step_mean = [](const CalibrationRound& r) { return mean(r.compute_step); };
  const auto compute_step_0 = [](const CalibrationRound& r) { return r.compute_step.front(); };
  result.rank_0 = estimate_ratio(column(rounds, compute_step_0), column(rounds, compute_step_mean));
  const auto observed = [&](auto get) { return estimate_mean(column(rounds, get)); };
  const auto exposed = [rank](const CalibrationRound& r) { return r.step - r.compute_step[rank]; };
  const auto slowed_down = [](const CalibrationRound& r) { return r.compute_beside - r.compute_without; };
  const auto communication = column(rounds, &CalibrationRound::communication);
  result.exposed_fraction = estimate_ratio(column(rounds, exposed), communication);
  result.together = observed([](const CalibrationRound& r) { return mean(r.compute_step) - r.alone; });
  result.exposed = observed(exposed);
  result.slowed_down = observed(slowed_down);
  result.waiting = observed([&](const CalibrationRound& r) { return exposed(r) - slowed_down(r); });
  find_stragglers(rounds, result);
}

struct GroupedSteps {
  std::vector<double> exposed;
  std::vector<double> stragglers;
  std::vector<double> beyond_mean;  ///< Step - compute step of the mean rank.
  std::vector<double> compute_step_0;
  std::vector<double> compute_step_mean;
  std::vector<std::vector<double>> above_mean;  ///< Per rank, compute step - that of the mean rank.
  std::vector<double> slowed_down;
};

GroupedSteps grouped_steps(const std::vector<CalibrationRound>& rounds) {
  GroupedSteps all;
  for (const CalibrationRound& round : rounds) {
    for (const StepGroup& group : round.groups) {
      const double mean_rank = mean(group.compute_step);
      all.exposed.push_back(group.exposed);
      all.stragglers.push_back(group.stragglers);
      all.beyond_mean.push_back(group.exposed + group.stragglers);
      all.compute_step_0.push_back(group.compute_step.front());
      all.compute_step_mean.push_back(mean_rank);
      all.above_mean.resize(group.compute_step.size());
      for (std::size_t rank = 0; rank < group.compute_step.size(); ++rank) {
        all.above_mean[rank].push_back(group.compute_step[rank] - mean_rank);
      }
    }
    all.slowed_down.insert(all.slowed_down.end(), round.slowed_down.begin(), round.slowed_down.end());
  }
  return all;
}

/// From steps that alternate: each group is an observation. Step and baseline come from their windows, and the parts
/// between them add up.
void evaluate_groups(Calibration& result) {
  const GroupedSteps all = grouped_steps(result.rounds);
  result.exposed = estimate_trimmed_mean(all.exposed);
  result.stragglers = estimate_trimmed_mean(all.stragglers);
  result.slowed_down = estimate_mean(all.slowed_down);
  result.rank_0 = estimate_ratio(all.compute_step_0, all.compute_step_mean);
  result.slowest_compute_step_seconds = result.step_seconds - result.exposed.value;
  result.compute_step_mean_seconds = *result.slowest_compute_step_seconds - result.stragglers.value;
  std::vector<double> above;
  for (const std::vector<double>& rank : all.above_mean) above.push_back(estimate_trimmed_mean(rank).value);
  const double shift = result.compute_step_mean_seconds - mean(above);
  result.compute_step_seconds.clear();
  for (const double seconds : above) result.compute_step_seconds.push_back(shift + seconds);
  result.slowest_rank = static_cast<std::size_t>(std::ranges::max_element(above) - above.begin());
  const double longer = result.step_seconds * result.scaling_efficiency.half_width;  // the interval of step - baseline
  result.together = {result.compute_step_mean_seconds - result.alone_seconds,
                     std::hypot(longer, estimate_trimmed_mean(all.beyond_mean).half_width)};
  result.waiting = {result.exposed.value - result.slowed_down.value,
                    std::hypot(result.exposed.half_width, result.slowed_down.half_width)};
  result.exposed_fraction = {result.exposed.value / result.communication_seconds,
                             result.exposed.half_width / result.communication_seconds};
}

}  // namespace

bool is_wide(const std::vector<CalibrationRound>& rounds) { return 2.0 * efficiency(rounds).half_width > kWide; }

bool is_narrow(const std::vector<CalibrationRound>& rounds) {
  return rounds.size() >= kRoundsOfAnInterval &&
         std::ranges::all_of(newest_efficiencies(rounds),
                             [](const Estimate& e) { return 2.0 * e.half_width < kNarrow; });
}

void mark_fallen_clocks(std::vector<CalibrationRound>& rounds) {
  const double alone = std::ranges::max(column(rounds, &CalibrationRound::alone_sm_mhz));
  const double step = std::ranges::max(column(rounds, &CalibrationRound::step_sm_mhz));
  for (CalibrationRound& round : rounds) {
    round.clock_fell = round.alone_sm_mhz < kClockFell * alone || round.step_sm_mhz < kClockFell * step;
  }
}

void evaluate(Calibration& result) {
  DDP_CHECK(!result.rounds.empty(), "no rounds");
  const std::vector<CalibrationRound>& rounds = result.rounds;
  result.alone_seconds = mean(column(rounds, &CalibrationRound::alone));
  result.step_seconds = mean(column(rounds, &CalibrationRound::step));
  result.communication_seconds = mean(column(rounds, &CalibrationRound::communication));
  result.scaling_efficiency = final_efficiency(rounds);
  rounds.front().groups.empty() ? evaluate_windows(result) : evaluate_groups(result);
}

}  // namespace ddptrain
