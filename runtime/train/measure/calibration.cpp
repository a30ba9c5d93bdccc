#include "runtime/train/measure/calibration.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "runtime/core/process/cores.h"
#include "runtime/core/process/signal_requests.h"
#include "runtime/train/measure/estimate.h"
#include "runtime/train/measure/measured_steps.h"
#include "runtime/train/measure/paired_medians.h"
#include "runtime/train/measure/step_window.h"
#include "runtime/train/measure/trace.h"

namespace ddptrain {
namespace {

constexpr std::array kRound = {TimedWork::alone,         TimedWork::step,          TimedWork::compute_step,
                               TimedWork::communication, TimedWork::communication, TimedWork::compute_step,
                               TimedWork::step,          TimedWork::alone};
constexpr std::size_t kWindowsOfARound = kRound.size();
constexpr std::size_t kKinds = kWindowsOfARound / 2;
constexpr double kRoundSeconds = 1.0;         // minimum, if the limit allows several rounds
constexpr double kSlowGpuRoundSeconds = 4.0;  // a GPU that is limited by power needs long windows
constexpr double kSlowStepSeconds = 0.01;
constexpr double kRecoverySeconds = 1.0;  // time in which such a GPU gets from idle to the clock of its power limit
constexpr double kRecoveriesOfARound = 3.0;
constexpr double kPairSeconds = 2.0;  // most of a round, for steps that alternate one by one
constexpr double kPairShare = 1.0 / 3.0;
constexpr double kFewestRounds = 4.0;
constexpr std::size_t kRoundsOfAnInterval = 8;  // with fewer rounds, an interval is too often narrow by chance
constexpr std::size_t kConfirmingRounds = 3;    // rounds after which it is narrow, before it ends the rounds
constexpr double kNarrow = 0.01;                // width of an efficiency's interval that ends the rounds
constexpr double kClockFell = 0.97;
constexpr double kWide = 0.05;  // width of that interval with which rounds go on beyond the limit of time
constexpr double kLongerIfWide = 3.0;
constexpr std::uint64_t kMostPieces = 250;  // of a window: half a millisecond each; reading their clocks takes 3 us

std::size_t index_of(TimedWork work) { return static_cast<std::size_t>(work); }
double slowest(const std::vector<double>& seconds) { return *std::max_element(seconds.begin(), seconds.end()); }
std::uint32_t traced_steps(double step_seconds) { return step_seconds > kSlowStepSeconds ? 1 : kUnroll; }

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
      if (window.work == TimedWork::step) step.push_back(slowest(window.undelayed));
    }
  }
  return estimate_alternating_ratio(alone, step);
}

bool is_wide(const std::vector<CalibrationRound>& rounds) { return 2.0 * efficiency(rounds).half_width > kWide; }

/// The efficiency after each of the newest rounds: an interval may be narrow by chance, and then measuring would end.
std::vector<Estimate> newest_efficiencies(std::span<const CalibrationRound> rounds) {
  std::vector<Estimate> newest;
  while (newest.size() < kConfirmingRounds) newest.push_back(efficiency(rounds.first(rounds.size() - newest.size())));
  return newest;
}

bool is_narrow(const std::vector<CalibrationRound>& rounds) {
  return rounds.size() >= kRoundsOfAnInterval &&
         std::ranges::all_of(newest_efficiencies(rounds),
                             [](const Estimate& e) { return 2.0 * e.half_width < kNarrow; });
}

/// If the rounds ended because the interval was narrow, with the widest of those that ended them.
Estimate final_efficiency(const std::vector<CalibrationRound>& rounds) {
  Estimate result = efficiency(rounds);
  if (!is_narrow(rounds)) return result;
  for (const Estimate& e : newest_efficiencies(rounds)) result.half_width = std::max(result.half_width, e.half_width);
  return result;
}

class Calibrator {
 public:
  Calibrator(TimedJob& job, double step_seconds, bool gpu, const CalibrationLimit& limit)
      : job_(job), limit_(limit), crowd_(job.crowd()) {
    const bool slow = gpu && step_seconds > kSlowStepSeconds;
    const double most = slow ? kSlowGpuRoundSeconds : kRoundSeconds;
    double round_seconds = limit.seconds / kFewestRounds;
    if (slow) {
      recovery_steps_ = agreed_steps(std::min(kRecoverySeconds, round_seconds / kWindowsOfARound), step_seconds);
      recovery_seconds_ = static_cast<double>(recovery_steps_) * step_seconds;
      round_seconds -= kRecoveriesOfARound * recovery_seconds_;
      const double pair_seconds = std::min(kPairShare * round_seconds, kPairSeconds);
      round_seconds -= pair_seconds;
      pairs_ = 2 * static_cast<std::uint64_t>(job.agreed(std::max(1.0, std::floor(pair_seconds / (4 * step_seconds)))));
    }
    const double window = std::min(round_seconds, most) / kWindowsOfARound;
    steps_.fill(agreed_steps(window, step_seconds));
    const double communication = slowest(job.time(TimedWork::communication, 1, 0).seconds);
    steps_[index_of(TimedWork::communication)] = agreed_steps(window, std::max(communication, 1e-9));
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
      measure(rounds.emplace_back());
      find_disturbance(result);
      after_next = seconds_ + (seconds_ - before);
      const double with_cores = after_next - job_waited_ - (job_waited_ - waited_before);
      const bool goes_beyond =
          after_next > limit_.seconds && is_wide(rounds) && (result.disturbed.empty() || with_cores <= limit_.seconds);
      limit = goes_beyond ? limit_.if_wide_seconds : limit_.seconds;
      done = job_.agreed(after_next > limit || is_narrow(rounds) || job_.asked_to_end() ? 1.0 : 0.0) > 0.0;
    }
    mark_fallen_clocks(rounds);
    if (!is_narrow(rounds)) result.limit_seconds = limit;
    if (!result.limit_seconds && limit_.is_fixed && after_next <= limit) result.unspent_limit_seconds = limit;
    result.seconds = seconds_;
    return result;
  }

 private:
  std::uint64_t agreed_steps(double window_seconds, double step_seconds) {
    return static_cast<std::uint64_t>(job_.agreed(static_cast<double>(steps_per_window(window_seconds, step_seconds))));
  }

  void measure(CalibrationRound& round) {
    std::vector<TimedJob::Window> windows;
    for (const TimedWork work : kRound) {
      TimedJob::Window& window = windows.emplace_back(job_.time(work, steps_of(work), lead(work)));
      seconds_ += slowest(window.seconds);
      if (crowd_.empty()) job_waited_ += waited_in(window);
      if (work == TimedWork::step) round.compute_beside += 0.5 * compute(true);
      if (work == TimedWork::compute_step) round.compute_without += 0.5 * compute(false);
      round.windows.push_back(timed(work, window));
    }
    for (std::size_t i = 0; i < windows.size(); ++i) {
      if (kRound[i] == TimedWork::compute_step) note_compute_step(undelayed(kRound[i], windows[i]));
    }
    for (std::size_t i = 0; i < windows.size(); ++i) {
      round.windows[i].undelayed = undelayed(kRound[i], windows[i]);
      add(round, round.windows[i], windows[i].sm_mhz);
    }
    if (pairs_ > 0) alternate(round);
  }

  /// Steps with and without communication, and traced ones, by turns: at one clock.
  void alternate(CalibrationRound& round) {
    const std::vector<StepPair> pairs = job_.time_pairs(pairs_, recovery_steps_);
    if (pairs.empty()) return;
    seconds_ += recovery_seconds_;
    for (const StepPair& pair : pairs) seconds_ += slowest(pair.step) + slowest(pair.compute_step);
    last_ = TimedWork::step;
    const PairedDifference difference = compare(pairs);
    round.slowest_compute_step = round.step - difference.slowest;
    for (std::size_t rank = 0; rank < round.compute_step.size(); ++rank) {
      round.compute_step[rank] = round.step - difference.per_rank[rank];
    }
    round.compute_beside = 0.5 * compute(true);
    round.compute_without = 0.5 * (compute(false) + compute(false));
    round.compute_beside += 0.5 * compute(true);
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

  static void add(CalibrationRound& round, const TimedWindow& window, double sm_mhz) {
    switch (window.work) {
      case TimedWork::alone:
        round.alone += 0.5 * window.undelayed.front();
        round.alone_sm_mhz += 0.5 * sm_mhz;
        break;
      case TimedWork::step:
        round.step += 0.5 * slowest(window.undelayed);
        round.step_sm_mhz += 0.5 * sm_mhz;
        break;
      case TimedWork::compute_step:
        add(round.compute_step, window.undelayed, 0.5);
        for (std::size_t rank = 0; rank < window.cpu_seconds.size(); ++rank) {
          round.compute_step_cpu.resize(window.cpu_seconds.size());
          round.compute_step_cpu[rank] += 0.5 * window.cpu_seconds[rank] / window.seconds[rank];
        }
        break;
      case TimedWork::communication:
        round.communication += 0.5 * slowest(window.undelayed);
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
    result.disturbed = disturbance(result, taken);
    result.by_others = crowd_.empty() && !result.disturbed.empty();
  }

  std::string disturbance(const Calibration& result, const std::optional<CoreShare::Taken>& taken) const {
    if (!crowd_.empty()) return crowd_;
    const bool waits = result.core_wait >= CoreShare::kDisturbed;
    if (taken && taken->share >= CoreShare::kDisturbed && (waits || taken->lacking)) return taken->text();
    if (!waits) return "";
    return fmt::format("rank {} waited {:.0f}% of its time for a core", result.core_wait_rank,
                       100.0 * result.core_wait);
  }

  std::uint64_t lead(TimedWork work) {
    const bool rested = last_ == TimedWork::alone || last_ == TimedWork::communication;
    const bool recovers = rested && work != last_ && recovery_steps_ > 0;
    last_ = work;
    if (!recovers) return steps_[index_of(work)] / 4;
    seconds_ += recovery_seconds_;
    return recovery_steps_;
  }

  /// Runs after a window of the same work, so that the clock is the same.
  double compute(bool communicates) {
    const std::vector<double> seconds = job_.time_compute(communicates);
    seconds_ += slowest(seconds);
    return mean(seconds);
  }

  static void mark_fallen_clocks(std::vector<CalibrationRound>& rounds) {
    const double alone = std::ranges::max(column(rounds, &CalibrationRound::alone_sm_mhz));
    const double step = std::ranges::max(column(rounds, &CalibrationRound::step_sm_mhz));
    for (CalibrationRound& round : rounds) {
      round.clock_fell = round.alone_sm_mhz < kClockFell * alone || round.step_sm_mhz < kClockFell * step;
    }
  }

  TimedJob& job_;
  CalibrationLimit limit_;
  std::string crowd_;
  std::array<std::uint64_t, kKinds> steps_{};
  std::uint64_t recovery_steps_ = 0;  ///< 0: the GPU is not limited by power.
  double recovery_seconds_ = 0.0;
  std::uint64_t pairs_ = 0;           ///< Of steps that alternate one by one, in a round; 0: none.
  std::vector<double> waited_;        ///< Per rank, for a core.
  std::vector<double> had_work_;      ///< Per rank, seconds.
  std::vector<double> compute_step_;  ///< Per rank: the sum over all windows of compute steps, of seconds per step.
  double compute_step_windows_ = 0.0;
  TimedWork last_ = TimedWork::communication;  ///< The work of the newest window.
  double seconds_ = 0.0;                       ///< The sum over all windows so far.
  double job_waited_ = 0.0;                    ///< Of these, waits of the rank that waited longest for a core.
};

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

/// Of rank `slowest` on average, or of the slowest rank of each step if that was measured.
double slowest_compute_step(const CalibrationRound& round, std::size_t slowest) {
  return round.slowest_compute_step.value_or(round.compute_step[slowest]);
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
  const auto behind = column(
      rounds, [rank](const CalibrationRound& r) { return slowest_compute_step(r, rank) - mean(r.compute_step); });
  if (rounds.front().slowest_compute_step) {  // each step has its own slowest rank: none was chosen
    result.stragglers = estimate_mean(behind);
    return;
  }
  result.stragglers = estimate_mean(behind, slowest_candidates(rounds, rank));
  const double one = estimate_mean(behind).half_width;
  const double chosen = result.stragglers.half_width;
  for (Estimate* part : {&result.exposed, &result.waiting}) part->half_width = widened(part->half_width, one, chosen);
  const double scale = 1.0 / result.communication_seconds;
  result.exposed_fraction.half_width = widened(result.exposed_fraction.half_width, scale * one, scale * chosen);
}

/// Evaluates the means of the rounds.
void evaluate(Calibration& result) {
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
  const auto exposed = [rank](const CalibrationRound& r) { return r.step - slowest_compute_step(r, rank); };
  const auto slowed_down = [](const CalibrationRound& r) { return r.compute_beside - r.compute_without; };
  const auto communication = column(rounds, &CalibrationRound::communication);
  result.alone_seconds = mean(column(rounds, &CalibrationRound::alone));
  result.step_seconds = mean(column(rounds, &CalibrationRound::step));
  result.communication_seconds = mean(communication);
  result.scaling_efficiency = final_efficiency(rounds);
  result.exposed_fraction = estimate_ratio(column(rounds, exposed), communication);
  result.together = observed([](const CalibrationRound& r) { return mean(r.compute_step) - r.alone; });
  result.exposed = observed(exposed);
  result.slowed_down = observed(slowed_down);
  result.waiting = observed([&](const CalibrationRound& r) { return exposed(r) - slowed_down(r); });
  find_stragglers(rounds, result);
}

/// The job after training.
class TrainedJob final : public TimedJob {
 public:
  TrainedJob(Trainer& trainer, const World& world, SensorSampler* sensors, double step_seconds)
      : trainer_(trainer),
        world_(world),
        device_(trainer.device()),
        sensors_(sensors),
        steps_(trainer),
        alone_(steps_.graph_of([&device = device_, step = steps_.step_without_communication()](std::uint32_t offset) {
          const WholeDevice whole(device);
          step(offset);
        })),
        step_(trainer.training_steps()),
        compute_step_(steps_.graph_of(steps_.step_without_communication())),
        communication_(steps_.graph_of(steps_.communication())),
        traced_(trainer, traced_steps(step_seconds), steps_.step()),
        traced_compute_step_(trainer, traced_steps(step_seconds), steps_.step_without_communication()) {
    step_.prepare(step_seconds < kLongStepSeconds);
    const bool several = step_.has_graph_of_several();
    for (StepGraph* graph : {&alone_, &step_, &compute_step_, &communication_}) {
      graph->prepare(several);
      // The first launch of a graph uploads it. It does not count.
      const std::uint64_t steps = several ? kUnroll + 1 : 1;
      if (device_.kind() == DeviceKind::cuda) time_window(*graph, steps, world, device_);
    }
    if (device_.kind() == DeviceKind::cpu) {
      cores_.emplace(world, device_.options().threads);
    } else {
      traced_.run();
      traced_compute_step_.run();
    }
  }

  Window time(TimedWork work, std::uint64_t steps, std::uint64_t lead) override {
    StepGraph& graph = *std::array{&alone_, &step_, &compute_step_, &communication_}[index_of(work)];
    const bool overlaps_next = work == TimedWork::step && trainer_.overlaps_next_forward();  // as in training
    const bool takes_part = work != TimedWork::alone || world_.rank() == 0;
    if (takes_part) {
      graph.run(overlaps_next ? std::max<std::uint64_t>(lead, 1) : lead);
      if (!overlaps_next) device_.synchronize();
    }
    if (sensors_ != nullptr) sensors_->take();  // drops earlier readings
    const WindowTime mine = time_window(graph, steps, world_, device_,
                                        {.takes_part = takes_part,
                                         .waits = !overlaps_next,
                                         .steps_per_piece = cores_ ? (steps + kMostPieces - 1) / kMostPieces : 0});
    device_.synchronize();
    SensorWindow shown;
    if (sensors_ != nullptr && takes_part) shown = sensors_->take();
    Window window{gather(mine.seconds)};
    if (cores_) {
      window.cpu_seconds = gather(mine.cpu_seconds);
      window.pieces = gather(mine.pieces, work);
      window.meeting = overlaps_next ? Meeting::at_start : Meeting::later;
    }
    for (const double mhz : gather(shown.sm_mhz.readings > 0 ? shown.sm_mhz.mean() : 0.0)) {
      if (mhz > 0.0) window.sm_mhz = window.sm_mhz == 0.0 ? mhz : std::min(window.sm_mhz, mhz);
    }
    return window;
  }

  std::vector<StepPair> time_pairs(std::uint64_t pairs, std::uint64_t lead) override {
    if (trainer_.overlaps_next_forward()) return {};  // a single step does not contain its communication
    for (std::uint64_t step = 0; step < lead; ++step) (step % 2 == 0 ? step_ : compute_step_).run(1);
    device_.synchronize();
    std::vector<double> mine;  // of each pair: step, compute step
    for (std::uint64_t pair = 0; pair < pairs; ++pair) {
      const bool is_reversed = pair % 2 == 1;
      const double first = time_one(is_reversed ? compute_step_ : step_);
      const double second = time_one(is_reversed ? step_ : compute_step_);
      mine.push_back(is_reversed ? second : first);
      mine.push_back(is_reversed ? first : second);
    }
    const std::vector<double> all = world_.all_gather(mine);
    std::vector<StepPair> result(pairs);
    for (std::size_t i = 0; i < all.size(); ++i) {
      StepPair& pair = result[i % mine.size() / 2];
      (i % 2 == 0 ? pair.step : pair.compute_step).push_back(all[i]);
    }
    return result;
  }

  std::vector<double> time_compute(bool communicates) override {
    world_.barrier();
    const auto start = std::chrono::steady_clock::now();
    const double waited_before = core_wait_.seconds();
    const double compute = compute_seconds((communicates ? traced_ : traced_compute_step_).run());
    const double waited = core_wait_.seconds() - waited_before;
    const double whole = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const bool corrects = cores_ && cores_->crowd().empty();
    return gather(corrects ? compute * std::max(0.0, 1.0 - waited / whole) : compute);
  }

  std::optional<CoreShare::Taken> taken() override { return cores_ ? cores_->taken() : std::nullopt; }
  std::string crowd() override { return cores_ ? cores_->crowd() : ""; }

  void progress(double seconds, double of_seconds) override {
    const auto most = std::max(1u, static_cast<std::uint32_t>(std::ceil(of_seconds)));
    device_.watch().set_part(std::min(most, static_cast<std::uint32_t>(seconds)), most);
  }
  bool asked_to_end() override { return SignalRequests::end() != 0; }
  double agreed(double mine) override { return world_.max(mine); }

 private:
  /// Seconds of one step, from a common start of all ranks.
  double time_one(StepGraph& graph) {
    world_.barrier();
    const auto start = std::chrono::steady_clock::now();
    graph.run(1);
    device_.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  std::vector<double> gather(double value) const { return world_.all_gather(std::vector{value}); }

  /// Per rank. The ranks that take part have the same number of pieces.
  std::vector<Pieces> gather(const Pieces& mine, TimedWork work) const {
    const Pieces all = world_.all_gather(mine);
    std::vector<Pieces> ranks(static_cast<std::size_t>(world_.size()));
    const std::size_t taking_part = work == TimedWork::alone ? 1 : ranks.size();
    const auto count = static_cast<std::ptrdiff_t>(all.size() / taking_part);
    for (std::size_t rank = 0; rank < taking_part; ++rank) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank) * count;
      ranks[rank].assign(begin, begin + count);
    }
    return ranks;
  }

  Trainer& trainer_;
  const World& world_;
  Device& device_;
  SensorSampler* sensors_;
  MeasuredSteps steps_;
  StepGraph alone_;
  StepGraph& step_;
  StepGraph compute_step_;
  StepGraph communication_;
  TracedSteps traced_;
  TracedSteps traced_compute_step_;
  std::optional<CoreShare> cores_;  ///< If CPUs compute.
  CoreWait core_wait_;
};

}  // namespace

CalibrationLimit calibration_limit(double asked, double train_seconds, double min_seconds) {
  if (asked > 0.0) return asked;
  const double seconds = std::clamp(0.25 * std::max(train_seconds, min_seconds), kFewestRounds * kRoundSeconds, 20.0);
  return {seconds, kLongerIfWide * seconds};
}

Calibration calibrate(TimedJob& job, double samples_per_step, double step_seconds, bool gpu,
                      const CalibrationLimit& limit) {
  Calibration result = Calibrator(job, step_seconds, gpu, limit).measure();
  evaluate(result);
  if (result.by_others || (!result.cpu_share.empty() && is_wide(result.rounds))) evaluate_medians(result);
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
  TrainedJob job(trainer, world, sensors, step_seconds);
  return calibrate(job, samples_per_step, step_seconds, device.kind() == DeviceKind::cuda, limit);
}

}  // namespace ddptrain
