#include "runtime/train/measure/paired_medians.h"

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
#include "runtime/train/measure/estimate.h"

namespace ddptrain {
namespace {

constexpr double kDoubtOfWaits = 0.1;  // of the time without waits, per share of waits taken out
constexpr unsigned kResamples = 500;

using Rounds = std::vector<const CalibrationRound*>;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 == 1) return *middle;
  return 0.5 * (*middle + *std::max_element(values.begin(), middle));
}

/// Of each half round in turn: seconds per step of each rank that takes part.
std::vector<std::vector<double>> windows_of(const Rounds& rounds, TimedWork work) {
  std::vector<std::vector<double>> result;
  for (const CalibrationRound* round : rounds) {
    for (const TimedWindow& window : round->windows) {
      if (window.work == work) result.push_back(window.undelayed);
    }
  }
  return result;
}

/// Per rank: the median of its windows relative to the baseline's.
std::vector<double> relative_to(const std::vector<std::vector<double>>& baseline,
                                const std::vector<std::vector<double>>& windows) {
  std::vector<double> result;
  for (std::size_t rank = 0; rank < windows.front().size(); ++rank) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < windows.size(); ++i) ratios.push_back(windows[i][rank] / baseline[i].front());
    result.push_back(median(std::move(ratios)));
  }
  return result;
}

double median_of(const Rounds& rounds, double CalibrationRound::*quantity) {
  std::vector<double> values;
  for (const CalibrationRound* round : rounds) values.push_back(round->*quantity);
  return median(std::move(values));
}

/// Seconds per step of a job without disturbances.
struct Times {
  double alone;
  double step;
  double communication;
  double compute_beside;
  double compute_without;
  std::vector<double> compute_step;
};

Times times_of(const Rounds& rounds) {
  const auto baseline = windows_of(rounds, TimedWork::alone);
  std::vector<double> alone;
  for (const std::vector<double>& window : baseline) alone.push_back(window.front());
  Times times{.alone = median(std::move(alone)),
              .step = std::ranges::max(relative_to(baseline, windows_of(rounds, TimedWork::step))),
              .communication = median_of(rounds, &CalibrationRound::communication),
              .compute_beside = median_of(rounds, &CalibrationRound::compute_beside),
              .compute_without = median_of(rounds, &CalibrationRound::compute_without),
              .compute_step = relative_to(baseline, windows_of(rounds, TimedWork::compute_step))};
  times.step *= times.alone;
  for (double& seconds : times.compute_step) seconds *= times.alone;
  return times;
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

void evaluate_medians(Calibration& result) {
  DDP_CHECK(!result.rounds.empty(), "no rounds");
  const Bootstrap rounds(result.rounds);
  const Times& times = rounds.whole();
  const auto rank = static_cast<std::size_t>(std::ranges::max_element(times.compute_step) - times.compute_step.begin());
  result.alone_seconds = times.alone;
  result.step_seconds = times.step;
  result.communication_seconds = times.communication;
  result.compute_step_seconds = times.compute_step;
  result.slowest_rank = rank;
  result.compute_step_mean_seconds = mean(times.compute_step);
  const auto exposed = [rank](const Times& t) { return t.step - t.compute_step[rank]; };
  const auto slowed_down = [](const Times& t) { return t.compute_beside - t.compute_without; };
  result.scaling_efficiency = rounds.estimate([](const Times& t) { return t.alone / t.step; });
  result.scaling_efficiency.half_width =
      std::hypot(result.scaling_efficiency.half_width, kDoubtOfWaits * result.core_wait);
  result.rank_0 = rounds.estimate([](const Times& t) { return t.compute_step.front() / mean(t.compute_step); });
  result.together = rounds.estimate([](const Times& t) { return mean(t.compute_step) - t.alone; });
  result.stragglers = rounds.estimate([rank](const Times& t) { return t.compute_step[rank] - mean(t.compute_step); });
  result.exposed = rounds.estimate(exposed);
  result.exposed_fraction = rounds.estimate([&](const Times& t) { return exposed(t) / t.communication; });
  result.slowed_down = rounds.estimate(slowed_down);
  result.waiting = rounds.estimate([&](const Times& t) { return exposed(t) - slowed_down(t); });
}

}  // namespace ddptrain
