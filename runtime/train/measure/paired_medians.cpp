#include "runtime/train/measure/paired_medians.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <iterator>
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
constexpr std::size_t kHalves = 2;        // of a round
constexpr double kSameSpeed = 1.15;       // ratio up to which two speeds count as equal
constexpr std::size_t kFewestHalves = 4;  // with equal cores, for the others not to count

using Rounds = std::vector<const CalibrationRound*>;

/// Seconds per step in the windows of half a round.
struct HalfRound {
  double alone;
  std::vector<double> step;  ///< Of each rank, as the next one.
  std::vector<double> compute_step;
};

/// In the order of the windows: those of a kind are in as many half rounds.
std::vector<HalfRound> half_rounds_of(const Rounds& rounds) {
  std::vector<HalfRound> halves;
  for (const CalibrationRound* round : rounds) {
    std::size_t alone = halves.size();
    std::size_t step = halves.size();
    std::size_t compute_step = halves.size();
    halves.resize(halves.size() + kHalves);
    for (const TimedWindow& window : round->windows) {
      if (window.work == TimedWork::alone) halves.at(alone++).alone = window.undelayed.front();
      if (window.work == TimedWork::step) halves.at(step++).step = window.undelayed;
      if (window.work == TimedWork::compute_step) halves.at(compute_step++).compute_step = window.undelayed;
    }
  }
  return halves;
}

/// How much longer rank 0 computes if the other ranks compute, too.
double slowed_by_others(const HalfRound& half) { return half.compute_step.front() / half.alone; }

/// The half rounds in which the cores had the same speed: all ranks computed about as fast, and rank 0 was slowed down
/// by the others as much as it usually is. All of them if these are too few, such as where a rank is always slower.
std::vector<HalfRound> of_equal_cores(const std::vector<HalfRound>& halves) {
  std::vector<double> slowed;
  for (const HalfRound& half : halves) slowed.push_back(slowed_by_others(half));
  const double usually = median(std::move(slowed));
  std::vector<HalfRound> equal;
  std::ranges::copy_if(halves, std::back_inserter(equal), [usually](const HalfRound& half) {
    const auto [fastest, slowest] = std::ranges::minmax(half.compute_step);
    const double change = slowed_by_others(half) / usually;
    return slowest < kSameSpeed * fastest && change < kSameSpeed && kSameSpeed * change > 1.0;
  });
  return equal.size() < kFewestHalves ? halves : equal;
}

/// Per rank: the median of its windows relative to the baseline's.
std::vector<double> relative_to_alone(const std::vector<HalfRound>& halves, std::vector<double> HalfRound::*seconds) {
  std::vector<double> result;
  for (std::size_t rank = 0; rank < (halves.front().*seconds).size(); ++rank) {
    std::vector<double> ratios;
    for (const HalfRound& half : halves) ratios.push_back((half.*seconds)[rank] / half.alone);
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
  const std::vector<HalfRound> halves = of_equal_cores(half_rounds_of(rounds));
  std::vector<double> alone;
  for (const HalfRound& half : halves) alone.push_back(half.alone);
  Times times{.alone = median(std::move(alone)),
              .step = std::ranges::max(relative_to_alone(halves, &HalfRound::step)),
              .communication = median_of(rounds, &CalibrationRound::communication),
              .compute_beside = median_of(rounds, &CalibrationRound::compute_beside),
              .compute_without = median_of(rounds, &CalibrationRound::compute_without),
              .compute_step = relative_to_alone(halves, &HalfRound::compute_step)};
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
