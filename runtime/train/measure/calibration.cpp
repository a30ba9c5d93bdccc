#include "runtime/train/measure/calibration.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "runtime/train/measure/estimate.h"
#include "runtime/train/measure/evaluation.h"
#include "runtime/train/measure/paired_medians.h"
#include "runtime/train/measure/step_window.h"
#include "runtime/train/measure/trained_job.h"

namespace ddptrain {
namespace {

constexpr std::array kRound = {TimedWork::alone,         TimedWork::step,          TimedWork::compute_step,
                               TimedWork::communication, TimedWork::communication, TimedWork::compute_step,
                               TimedWork::step,          TimedWork::alone};
constexpr std::size_t kWindowsOfARound = kRound.size();
constexpr std::size_t kKinds = kWindowsOfARound / 2;
constexpr double kRoundSeconds = 1.0;  // minimum, if the limit allows several rounds
constexpr double kSlowStepSeconds = 0.01;
constexpr double kFewestRounds = 4.0;
constexpr double kLongerIfWide = 3.0;
constexpr double kSlowSeconds = 20.0;  // limit of time: three rounds with steps that alternate

/// A round in which steps alternate. All ranks have run for seconds before their steps are timed.
struct AlternatingRound {
  static constexpr std::array kBefore = {TimedWork::alone, TimedWork::alone, TimedWork::communication,
                                         TimedWork::communication};
  static constexpr std::array kAfter = {TimedWork::step, TimedWork::step,  TimedWork::step,
                                        TimedWork::step, TimedWork::alone, TimedWork::alone};
  static constexpr std::uint64_t kStepWindows = 8;  // of the step and of the baseline
  static constexpr double kFewestInMeasurement = 3.0;
  static constexpr double kShortestSeconds = 5.0;
  static constexpr double kLongestSeconds = 10.0;
  // Parts of a round.
  static constexpr double kSettles = 0.17;        // before steps alternate: the other ranks have rested
  static constexpr double kSettlesAlone = 0.08;   // before the baseline: rank 0 has not
  static constexpr double kLead = 0.01;           // before the step
  static constexpr double kWindow = 0.02;         // of the step and of the baseline
  static constexpr double kCommunication = 0.01;  // two of them, in which GPUs rest
  static constexpr double kPlanned = 0.95;        // the first round has another settling time
  static constexpr std::uint64_t kGroupsOfATracedOne = 8;
  static constexpr double kMostBeyondLimit = 0.25;

  static double seconds(double limit) {
    const double longest = std::clamp(limit / kFewestInMeasurement, kShortestSeconds, kLongestSeconds);
    return limit / std::max(1.0, std::floor(limit / longest));
  }
};

std::size_t index_of(TimedWork work) { return static_cast<std::size_t>(work); }
double slowest(const std::vector<double>& seconds) { return *std::max_element(seconds.begin(), seconds.end()); }

class Calibrator {
 public:
  Calibrator(TimedJob& job, double step_seconds, bool gpu, const CalibrationLimit& limit)
      : job_(job), limit_(limit), crowd_(job.crowd()) {
    if (gpu && is_slow_step(step_seconds)) {
      plan_alternating(step_seconds);
      return;
    }
    const double window = std::min(limit.seconds / kFewestRounds, kRoundSeconds) / kWindowsOfARound;
    plan_windows(window, window, step_seconds);
  }

  Calibration measure() {
    Calibration result;
    std::vector<CalibrationRound>& rounds = result.rounds;
    double limit = limit_.seconds;
    double after_next = 0.0;  // seconds, if there is one more round
    bool done = false;
    while (!done) {
      const double before = seconds_;
      const double waited_before = job_waited_;
      job_.progress(seconds_, limit_.if_wide_seconds);
      groups_ > 0 ? measure_alternating(rounds.emplace_back()) : measure(rounds.emplace_back());
      find_disturbance(result);
      after_next = seconds_ + (seconds_ - before);
      const double with_cores = after_next - job_waited_ - (job_waited_ - waited_before);
      const bool goes_beyond = after_next > limit_.seconds && is_wide(rounds) &&
                               (result.disturbed.why.empty() || with_cores <= limit_.seconds);
      limit = goes_beyond ? limit_.if_wide_seconds : limit_.seconds;
      done =
          job_.agreed(after_next - may_exceed_ > limit || is_narrow(rounds) || job_.asked_to_end() ? 1.0 : 0.0) > 0.0;
    }
    mark_fallen_clocks(rounds);
    if (!is_narrow(rounds)) result.limit_seconds = limit;
    if (!result.limit_seconds && limit_.is_fixed && after_next <= limit) result.unspent_limit_seconds = limit;
    result.seconds = seconds_;
    return result;
  }

 private:
  void plan_windows(double step_window, double communication_window, double step_seconds) {
    steps_.fill(agreed_steps(step_window, step_seconds));
    const double communication = slowest(job_.time(TimedWork::communication, 1, 0).seconds);
    steps_[index_of(TimedWork::communication)] = agreed_steps(communication_window, std::max(communication, 1e-9));
  }

  void plan_alternating(double step_seconds) {
    using Round = AlternatingRound;
    step_seconds_ = step_seconds;
    const double round = Round::seconds(limit_.seconds);
    may_exceed_ = Round::kMostBeyondLimit * round;
    recovery_steps_ = agreed_steps(Round::kSettles * round, step_seconds);
    alone_lead_steps_ = agreed_steps(Round::kSettlesAlone * round, step_seconds);
    short_lead_steps_ = agreed_steps(Round::kLead * round, step_seconds);
    plan_windows(Round::kWindow * round, Round::kCommunication * round, step_seconds);
    const std::uint64_t others =
        recovery_steps_ + alone_lead_steps_ + short_lead_steps_ + Round::kStepWindows * steps_of(TimedWork::step);
    const double left = Round::kPlanned * round - static_cast<double>(others) * step_seconds;
    const auto groups = static_cast<std::uint64_t>(job_.agreed(std::max(3.0, std::floor(left / (4.0 * step_seconds)))));
    traced_groups_ = std::max<std::uint64_t>(1, groups / Round::kGroupsOfATracedOne);
    groups_ = groups - traced_groups_;
  }

  std::uint64_t agreed_steps(double window_seconds, double step_seconds) {
    return static_cast<std::uint64_t>(job_.agreed(static_cast<double>(steps_per_window(window_seconds, step_seconds))));
  }

  void measure(CalibrationRound& round) {
    std::vector<TimedJob::Window> windows;
    for (const TimedWork work : kRound) {
      windows.push_back(measure(work, steps_of(work) / 4, round));
      if (work == TimedWork::step) round.compute_beside += 0.5 * compute(true);
      if (work == TimedWork::compute_step) round.compute_without += 0.5 * compute(false);
    }
    for (std::size_t i = 0; i < windows.size(); ++i) {
      if (kRound[i] == TimedWork::compute_step) note_compute_step(undelayed(kRound[i], windows[i]));
    }
    add(round, windows);
  }

  TimedJob::Window measure(TimedWork work, std::uint64_t lead_steps, CalibrationRound& round) {
    TimedJob::Window window = job_.time(work, steps_of(work), lead_steps);
    seconds_ += slowest(window.seconds);
    if (crowd_.empty()) job_waited_ += waited_in(window);
    counts_waits_ = counts_waits_ || window.meeting == Meeting::between_hosts;
    round.windows.push_back(timed(work, window));
    return window;
  }

  /// The windows of the step follow the steps that alternate, at the clock that these have brought all ranks to. The
  /// baseline is last, because the other ranks rest meanwhile.
  void measure_alternating(CalibrationRound& round) {
    std::vector<TimedJob::Window> windows;
    for (const TimedWork work : AlternatingRound::kBefore) windows.push_back(measure(work, settle(work), round));
    alternate(round);
    for (const TimedWork work : AlternatingRound::kAfter) windows.push_back(measure(work, settle(work), round));
    add(round, windows);
    round.compute_step = compute_steps(round.step, round.groups);
  }

  /// Steps with and without communication, and traced ones, by turns: at one clock.
  void alternate(CalibrationRound& round) {
    const std::uint64_t lead_pairs = 2 * ((recovery_steps_ + 3) / 4);
    const std::vector<StepPair> pairs = job_.time_pairs(2 * groups_, lead_pairs);
    seconds_ += 2.0 * static_cast<double>(lead_pairs) * step_seconds_;
    for (const StepPair& pair : pairs) seconds_ += slowest(pair.step) + slowest(pair.compute_step);
    round.groups = groups_of(pairs);
    const double scale = 0.5 / static_cast<double>(traced_groups_);
    for (std::uint64_t i = 0; i < traced_groups_; ++i) {
      double beside = compute(true);
      const double without = compute(false) + compute(false);
      beside += compute(true);
      round.slowed_down.push_back(0.5 * (beside - without));
      round.compute_beside += scale * beside;
      round.compute_without += scale * without;
    }
  }

  /// The steps before a window of an alternating round.
  std::uint64_t settle(TimedWork work) {
    std::uint64_t steps = work == last_ ? 0 : work == TimedWork::step ? short_lead_steps_ : alone_lead_steps_;
    if (seconds_ == 0.0) steps = recovery_steps_;  // all ranks may have rested
    if (work == TimedWork::communication) steps = steps_of(work) / 4;
    if (work == TimedWork::step || work == TimedWork::alone) seconds_ += static_cast<double>(steps) * step_seconds_;
    last_ = work;
    return steps;
  }

  void add(CalibrationRound& round, const std::vector<TimedJob::Window>& windows) {
    std::array<double, kKinds> count{};
    std::array<double, kKinds> clocks{};
    for (std::size_t i = 0; i < windows.size(); ++i) {
      count[index_of(round.windows[i].work)] += 1.0;
      if (windows[i].sm_mhz > 0.0) clocks[index_of(round.windows[i].work)] += 1.0;
    }
    for (std::size_t i = 0; i < windows.size(); ++i) {
      TimedWindow& window = round.windows[i];
      const std::size_t kind = index_of(window.work);
      window.undelayed = undelayed(window.work, windows[i]);
      add(round, window, 1.0 / count[kind], windows[i].sm_mhz / std::max(1.0, clocks[kind]));
    }
  }

  /// Seconds of the rank that waited longest for a core.
  static double waited_in(const TimedJob::Window& window) {
    double most = 0.0;
    for (const Pieces& rank : window.pieces) most = std::max(most, rank.empty() ? 0.0 : rank.back().waited);
    return most;
  }

  TimedWindow timed(TimedWork work, const TimedJob::Window& window) {
    TimedWindow result{work, steps_of(work), window.seconds, {}, window.cpu_seconds, {}};
    waited_.resize(window.seconds.size());
    had_work_.resize(window.seconds.size());
    for (std::size_t rank = 0; rank < window.pieces.size(); ++rank) {
      const double waited = window.pieces[rank].empty() ? 0.0 : window.pieces[rank].back().waited;
      result.waited.push_back(waited);
      if (work == TimedWork::communication) continue;
      waited_[rank] += waited;
      had_work_[rank] += window.seconds[rank];
    }
    return result;
  }

  void note_compute_step(const std::vector<double>& seconds) {
    compute_step_.resize(seconds.size());
    add(compute_step_, seconds, 1.0);
    ++compute_step_windows_;
  }

  static void add(std::vector<double>& sums, const std::vector<double>& values, double scale) {
    sums.resize(values.size());
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += scale * values[i];
  }

  /// Adds a window to the means of its round, of which it is the part `share`. `clock`: its part of the mean clock.
  static void add(CalibrationRound& round, const TimedWindow& window, double share, double clock) {
    switch (window.work) {
      case TimedWork::alone:
        round.alone += share * window.undelayed.front();
        round.alone_sm_mhz += clock;
        break;
      case TimedWork::step:
        round.step += share * slowest(window.undelayed);
        round.step_sm_mhz += clock;
        break;
      case TimedWork::compute_step:
        add(round.compute_step, window.undelayed, share);
        for (std::size_t rank = 0; rank < window.cpu_seconds.size(); ++rank) {
          round.compute_step_cpu.resize(window.cpu_seconds.size());
          round.compute_step_cpu[rank] += share * window.cpu_seconds[rank] / window.seconds[rank];
        }
        break;
      case TimedWork::communication:
        round.communication += share * slowest(window.undelayed);
    }
  }

  /// Seconds per step of each rank, without waits for cores.
  std::vector<double> undelayed(TimedWork work, const TimedJob::Window& window) const {
    const bool together = work == TimedWork::step || work == TimedWork::communication;
    if (corrects(window) && together) {
      std::vector<double> by_itself(window.seconds.size(), 0.0);
      if (work == TimedWork::step) add(by_itself, compute_step_, 1.0 / compute_step_windows_);
      return undelayed_steps(window.pieces, by_itself, window.meeting);
    }
    std::vector<double> result;
    for (std::size_t rank = 0; rank < window.seconds.size(); ++rank) {
      const bool takes_part = !corrects(window) || !window.pieces[rank].empty();
      const double seconds = window.seconds[rank] / static_cast<double>(steps_of(work));
      result.push_back(corrects(window) && takes_part ? undelayed_step(window.pieces[rank]) : seconds);
    }
    return result;
  }

  /// Waits for cores that the job takes from itself count.
  bool corrects(const TimedJob::Window& window) const { return crowd_.empty() && !window.pieces.empty(); }

  std::uint64_t steps_of(TimedWork work) const { return steps_[index_of(work)]; }

  void find_disturbance(Calibration& result) {
    result.core_wait = 0.0;
    for (std::size_t rank = 0; rank < waited_.size(); ++rank) {
      const double share = had_work_[rank] > 0.0 ? waited_[rank] / had_work_[rank] : 0.0;
      if (share <= result.core_wait) continue;
      result.core_wait = share;
      result.core_wait_rank = rank;
    }
    const std::optional<CoreShare::Taken> taken = job_.taken();
    result.cores_taken = taken ? std::optional(taken->share) : std::nullopt;
    result.disturbed = why_disturbed(crowd_, taken, result.core_wait, result.core_wait_rank);
    result.counts_waits = counts_waits_;
  }

  /// Runs after a window of the same work, so that the clock is the same.
  double compute(bool communicates) {
    const std::vector<double> seconds = job_.time_compute(communicates);
    seconds_ += slowest(seconds);
    return mean(seconds);
  }

  TimedJob& job_;
  CalibrationLimit limit_;
  std::string crowd_;
  bool counts_waits_ = false;
  std::array<std::uint64_t, kKinds> steps_{};
  std::uint64_t recovery_steps_ = 0;    ///< Of an alternating round, as the next two: before steps alternate.
  std::uint64_t alone_lead_steps_ = 0;  ///< Before the baseline.
  std::uint64_t short_lead_steps_ = 0;  ///< Before the step.
  double step_seconds_ = 0.0;           ///< If a lead takes long.
  double may_exceed_ = 0.0;             ///< Seconds of a round that begins before the limit.
  std::uint64_t groups_ = 0;            ///< Of steps that alternate one by one, in a round; 0: none.
  std::uint64_t traced_groups_ = 0;     ///< Of steps that alternate and are traced, in a round.
  std::vector<double> waited_;          ///< Per rank, for a core.
  std::vector<double> had_work_;        ///< Per rank, seconds.
  std::vector<double> compute_step_;    ///< Per rank: the sum over all windows of compute steps, of seconds per step.
  double compute_step_windows_ = 0.0;
  TimedWork last_ = TimedWork::communication;  ///< The work of the newest window.
  double seconds_ = 0.0;                       ///< The sum over all windows so far.
  double job_waited_ = 0.0;                    ///< Of these, waits of the rank that waited longest for a core.
};

}  // namespace

bool is_slow_step(double step_seconds) { return step_seconds > kSlowStepSeconds; }

CalibrationLimit calibration_limit(double asked, double train_seconds, double min_seconds, bool slow_gpu) {
  if (asked > 0.0) return asked;
  if (slow_gpu) return {kSlowSeconds, kSlowSeconds};
  const double seconds = std::clamp(0.25 * std::max(train_seconds, min_seconds), kFewestRounds * kRoundSeconds, 20.0);
  return {seconds, kLongerIfWide * seconds};
}

Calibration calibrate(TimedJob& job, double samples_per_step, double step_seconds, bool gpu,
                      const CalibrationLimit& limit) {
  Calibration result = Calibrator(job, step_seconds, gpu, limit).measure();
  evaluate(result);
  const bool alternated = !result.rounds.front().groups.empty();  // on GPUs, which do not wait for cores
  const bool disturbed = result.disturbed.by_others || (!result.cpu_share.empty() && is_wide(result.rounds));
  if (disturbed && !alternated) evaluate_medians(result);
  const auto ranks = static_cast<double>(result.compute_step_seconds.size());
  result.samples_per_second = samples_per_step / result.step_seconds;
  result.baseline_per_second = samples_per_step / ranks / result.alone_seconds;
  return result;
}

Calibration calibrate(Trainer& trainer, const World& world, double samples_per_second, const CalibrationLimit& limit,
                      SensorSampler* sensors) {
  if (world.size() == 1) {
    Calibration result;
    result.samples_per_second = result.baseline_per_second = samples_per_second;
    return result;
  }
  const Device& device = trainer.device();
  const Watch::Phase phase(device.watch(), "baseline");
  const auto samples_per_step = static_cast<double>(trainer.sampler().samples_per_step());
  const double step_seconds = samples_per_step / samples_per_second;
  const auto job = make_trained_job(trainer, world, sensors, step_seconds);
  return calibrate(*job, samples_per_step, step_seconds, device.kind() == DeviceKind::cuda, limit);
}

}  // namespace ddptrain
