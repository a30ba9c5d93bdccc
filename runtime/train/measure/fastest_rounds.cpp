#include "runtime/train/measure/fastest_rounds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

constexpr double kDoubtOfWaits = 0.1;  // of the time without waits, per share of waits taken out
constexpr unsigned kResamples = 500;

using Rounds = std::vector<const CalibrationRound*>;

double mean_of_fastest_third(std::vector<double> values) {
  std::ranges::sort(values);
  values.resize((values.size() + 2) / 3);
  return mean(values);
}

/// Of each rank that takes part.
std::vector<double> fastest_windows(const Rounds& rounds, TimedWork work) {
  std::vector<std::vector<double>> of_ranks;
  for (const CalibrationRound* round : rounds) {
    for (const TimedWindow& window : round->windows) {
      if (window.work != work) continue;
      of_ranks.resize(window.undelayed.size());
      for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) of_ranks[rank].push_back(window.undelayed[rank]);
    }
  }
  std::vector<double> result;
  for (const std::vector<double>& windows : of_ranks) result.push_back(mean_of_fastest_third(windows));
  return result;
}

double fastest(const Rounds& rounds, double CalibrationRound::*quantity) {
  std::vector<double> values;
  for (const CalibrationRound* round : rounds) values.push_back(round->*quantity);
  return mean_of_fastest_third(std::move(values));
}

/// Seconds per step of a job without disturbances.
struct Times {
  double alone, step, communication, compute_beside, compute_silent;
  std::vector<double> silent;
};

Times times_of(const Rounds& rounds) {
  return {.alone = fastest_windows(rounds, TimedWork::alone).front(),
          .step = std::ranges::max(fastest_windows(rounds, TimedWork::step)),
          .communication = std::ranges::max(fastest_windows(rounds, TimedWork::communication)),
          .compute_beside = fastest(rounds, &CalibrationRound::compute_beside),
          .compute_silent = fastest(rounds, &CalibrationRound::compute_silent),
          .silent = fastest_windows(rounds, TimedWork::silent)};
}

/// Rounds and random selections of as many of them.
class Bootstrap {
 public:
  explicit Bootstrap(const std::vector<CalibrationRound>& rounds) {
    Rounds all;
    for (const CalibrationRound& round : rounds) all.push_back(&round);
    whole_ = times_of(all);
    if (all.size() < 2) return;
    std::mt19937 random(1);  // the same on all ranks
    for (unsigned i = 0; i < kResamples; ++i) {
      Rounds drawn;
      while (drawn.size() < all.size()) drawn.push_back(all[random() % all.size()]);
      resampled_.push_back(times_of(drawn));
    }
    const auto n = static_cast<double>(all.size());
    deviations_ = student_quantile(0.025, n - 1.0) * std::sqrt(n / (n - 1.0));
  }

  const Times& whole() const { return whole_; }

  Estimate estimate(const std::function<double(const Times&)>& get) const {
    Estimate result{get(whole_)};
    if (resampled_.empty()) return result;
    double squares = 0.0;
    for (const Times& times : resampled_) squares += std::pow(get(times) - result.value, 2.0);
    result.half_width = deviations_ * std::sqrt(squares / static_cast<double>(resampled_.size()));
    return result;
  }

 private:
  Times whole_;
  std::vector<Times> resampled_;
  double deviations_ = std::numeric_limits<double>::infinity();  ///< Half an interval, in standard deviations.
};

}  // namespace

void evaluate_fastest_rounds(Calibration& result) {
  DDP_CHECK(!result.rounds.empty(), "no rounds");
  const Bootstrap rounds(result.rounds);
  const Times& times = rounds.whole();
  const auto rank = static_cast<std::size_t>(std::ranges::max_element(times.silent) - times.silent.begin());
  result.alone_seconds = times.alone;
  result.step_seconds = times.step;
  result.communication_seconds = times.communication;
  result.silent_seconds = times.silent;
  result.slowest_rank = rank;
  result.silent_mean_seconds = mean(times.silent);
  const auto exposed = [rank](const Times& t) { return t.step - t.silent[rank]; };
  const auto slowed_down = [](const Times& t) { return t.compute_beside - t.compute_silent; };
  result.scaling_efficiency = rounds.estimate([](const Times& t) { return t.alone / t.step; });
  result.scaling_efficiency.half_width =
      std::hypot(result.scaling_efficiency.half_width, kDoubtOfWaits * result.core_wait);
  result.rank_0 = rounds.estimate([](const Times& t) { return t.silent.front() / mean(t.silent); });
  result.together = rounds.estimate([](const Times& t) { return mean(t.silent) - t.alone; });
  result.stragglers = rounds.estimate([rank](const Times& t) { return t.silent[rank] - mean(t.silent); });
  result.exposed = rounds.estimate(exposed);
  result.exposed_fraction = rounds.estimate([&](const Times& t) { return exposed(t) / t.communication; });
  result.slowed_down = rounds.estimate(slowed_down);
  result.waiting = rounds.estimate([&](const Times& t) { return exposed(t) - slowed_down(t); });
}

}  // namespace ddptrain
