#include "runtime/train/measure/calibration.h"

#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>

namespace ddptrain {
namespace {

/// A bucket of gradients: complete after `compute` more seconds of a rank that computes alone, then sent.
struct FakeBucket {
  double compute;
  double communication;
};

/// A job whose durations are chosen. Buckets are sent in order, when all ranks have completed them.
struct FakeTimes {
  std::vector<FakeBucket> buckets;
  std::vector<double> rank = {1.0, 1.0};  ///< Factor of each rank's compute.
  double together = 1.0;                  ///< Factor of compute where all ranks compute.
  double beside = 1.0;                    ///< Factor of compute while communication is under way.

  double alone() const {
    double sum = 0.0;
    for (const FakeBucket& bucket : buckets) sum += bucket.compute;
    return sum * rank.front();
  }
  double compute_step(std::size_t of) const { return alone() / rank.front() * rank[of] * together; }
  double communication() const {
    double sum = 0.0;
    for (const FakeBucket& bucket : buckets) sum += bucket.communication;
    return sum;
  }

  struct Step {
    double end = 0.0;             ///< Of communication and compute, on all ranks.
    std::vector<double> compute;  ///< End of each rank's compute.
  };
  Step step() const {
    Step result{0.0, std::vector<double>(rank.size(), 0.0)};
    double sent_from = 0.0;  // the communication under way
    for (const FakeBucket& bucket : buckets) {
      for (std::size_t r = 0; r < rank.size(); ++r) {
        result.compute[r] = after(bucket.compute * rank[r] * together, result.compute[r], sent_from, result.end);
      }
      sent_from = std::max(result.end, *std::max_element(result.compute.begin(), result.compute.end()));
      result.end = sent_from + bucket.communication;
    }
    return result;
  }

 private:
  /// When `work` seconds of compute are done that begin at `now`, slowed down from `from` to `to`.
  double after(double work, double now, double from, double to) const {
    const double before = std::clamp(from - now, 0.0, work);
    now += before;
    work -= before;
    const double within = std::clamp(to - now, 0.0, work * beside);
    return now + within + work - within / beside;
  }
};

/// Durations of `times`, with noise and on a clock that drifts, both relative.
class FakeJob final : public TimedJob {
 public:
  FakeJob(FakeTimes times, double noise = 0.0, unsigned seed = 1, double drift_per_second = 0.0)
      : times_(std::move(times)), noise_(noise), drift_(drift_per_second), random_(seed) {}

  std::function<double(TimedWork)> sm_mhz = [](TimedWork) { return 0.0; };
  std::vector<double> cpu_share;  ///< Of each rank.
  double now = 0.0;               ///< Of a clock that stands still between windows.
  std::map<TimedWork, std::vector<std::uint64_t>> steps;

  Window time(TimedWork work, std::uint64_t count, std::uint64_t /*lead*/) override {
    steps[work].push_back(count);
    const std::size_t ranks = times_.rank.size();
    std::vector<double> seconds(ranks, 0.0);
    const double level = 1.0 + drift_ * now;
    for (std::size_t r = 0; r < ranks; ++r) seconds[r] = level * noisy(static_cast<double>(count) * once(work, r));
    if (work == TimedWork::step) std::fill(seconds.begin(), seconds.end(), seconds.front());
    now += slowest(seconds);
    std::vector<double> cpu = cpu_share;
    for (std::size_t r = 0; r < cpu.size(); ++r) cpu[r] *= seconds[r];
    return {seconds, sm_mhz(work), cpu};
  }

  std::vector<double> time_compute(bool communicates) override {
    std::vector<double> seconds;
    const FakeTimes::Step step = times_.step();
    for (std::size_t r = 0; r < times_.rank.size(); ++r) {
      const double truth = communicates ? step.compute[r] : times_.compute_step(r);
      seconds.push_back((1.0 + drift_ * now) * noisy(truth));
    }
    return seconds;
  }

 private:
  double once(TimedWork work, std::size_t rank) const {
    switch (work) {
      case TimedWork::alone:
        return rank == 0 ? times_.alone() : 0.0;
      case TimedWork::step:
        return times_.step().end;
      case TimedWork::compute_step:
        return times_.compute_step(rank);
      case TimedWork::communication:
        return times_.communication();
    }
    return 0.0;
  }
  static double slowest(const std::vector<double>& seconds) {
    return *std::max_element(seconds.begin(), seconds.end());
  }
  double noisy(double seconds) { return seconds * (1.0 + noise_ * normal_(random_)); }

  FakeTimes times_;
  double noise_;
  double drift_;
  std::mt19937 random_;
  std::normal_distribution<double> normal_;
};

constexpr double kUs = 1e-6;

/// What is right of a job, worked out by hand; microseconds.
struct Known {
  std::string name;
  FakeTimes times;
  double alone, together, stragglers, slowed_down, waiting, fraction;

  double exposed() const { return slowed_down + waiting; }
  double efficiency() const { return alone / (alone + together + stragglers + exposed()); }
};

std::vector<Known> jobs() {
  // The first bucket is sent beside the last 30 us of compute, which it slows down: 30 us do the work of 30 / 1.03.
  FakeTimes slowed{{{50 * kUs, 30 * kUs}, {50 * kUs, 5 * kUs}}};
  slowed.beside = 1.03;
  // Rank 1 computes for 102 us, rank 0 for 100: the mean is 101, and 5 us of communication follow.
  FakeTimes straggler{{{100 * kUs, 5 * kUs}}};
  straggler.rank = {1.0, 1.02};
  // 60 us of communication begin 30 us before the end of compute.
  const FakeTimes half{{{70 * kUs, 60 * kUs}, {30 * kUs, 0.0}}};
  // All compute takes 4% longer than that of one rank with its whole device.
  FakeTimes shared{{{100 * kUs, 2 * kUs}}};
  shared.together = 1.04;
  // All at once, on four ranks.
  FakeTimes all{{{50 * kUs, 20 * kUs}, {50 * kUs, 8 * kUs}}};
  all.rank = {1.0, 1.0, 1.02, 1.0};
  all.together = 1.01;
  all.beside = 1.03;
  const double slower = 20 * (1 - 1 / 1.03);
  // Eight ranks alike: the slowest one is so by chance. And one of eight that is hardly slower than the noise tells.
  FakeTimes alike{{{100 * kUs, 5 * kUs}}};
  alike.rank.assign(8, 1.0);
  FakeTimes hardly = alike;
  hardly.rank.back() = 1.002;
  return {{"compute slowed down by 3%", slowed, 100, 0, 0, 30 * (1 - 1 / 1.03), 5, (30 * (1 - 1 / 1.03) + 5) / 35},
          {"a straggler of 2%", straggler, 100, 1, 1, 0, 5, 1},
          {"a bucket that is half hidden", half, 100, 0, 0, 0, 30, 0.5},
          {"slower together", shared, 100, 4, 0, 0, 2, 1},
          {"all of it", all, 100, 101 * 1.005 - 100, 101 * 0.015, slower, 8, (slower + 8) / 28},
          {"eight ranks alike", alike, 100, 0, 0, 0, 5, 1},
          {"one of eight hardly slower", hardly, 100, 0.025, 0.175, 0, 5, 1}};
}

Calibration measure(TimedJob& job, const FakeTimes& times, const CalibrationLimit& limit = 20.0) {
  return calibrate(job, 64.0 * static_cast<double>(times.rank.size()), times.step().end, false, limit);
}

TEST(Calibration, ReportsWhatIsKnownByConstruction) {
  for (const Known& known : jobs()) {
    SCOPED_TRACE(known.name);
    FakeJob job(known.times);
    const Calibration c = measure(job, known.times);
    EXPECT_NEAR(1e6 * c.alone_seconds, known.alone, 1e-6);
    EXPECT_NEAR(1e6 * c.together.value, known.together, 1e-6);
    EXPECT_NEAR(1e6 * c.stragglers.value, known.stragglers, 1e-6);
    EXPECT_NEAR(1e6 * c.exposed.value, known.exposed(), 1e-6);
    EXPECT_NEAR(1e6 * c.slowed_down.value, known.slowed_down, 1e-6);
    EXPECT_NEAR(1e6 * c.waiting.value, known.waiting, 1e-6);
    EXPECT_NEAR(c.exposed_fraction.value, known.fraction, 1e-9);
    EXPECT_NEAR(c.scaling_efficiency.value, known.efficiency(), 1e-9);
    EXPECT_NEAR(c.samples_per_second * c.step_seconds, 64.0 * static_cast<double>(known.times.rank.size()), 1e-9);
    EXPECT_NEAR(c.baseline_per_second * c.alone_seconds, 64.0, 1e-9);
    const std::vector<double>& rank = known.times.rank;
    const double mean_rank = std::accumulate(rank.begin(), rank.end(), 0.0) / static_cast<double>(rank.size());
    EXPECT_NEAR(c.rank_0.value, rank.front() / mean_rank, 1e-9);
    EXPECT_TRUE(c.cpu_share.empty());
  }
}

/// Of 200 runs with noise, how many have an interval that holds the truth, by what is measured.
std::map<std::string, unsigned> holding_runs(const Known& known) {
  std::map<std::string, unsigned> held;
  for (unsigned run = 0; run < 200; ++run) {
    FakeJob job(known.times, 0.004, 1000 + run);
    const Calibration c = measure(job, known.times, 12.0);
    held["efficiency"] += c.scaling_efficiency.contains(known.efficiency());
    held["exposed"] += c.exposed.contains(kUs * known.exposed());
    held["fraction"] += c.exposed_fraction.contains(known.fraction);
    held["slowed down"] += c.slowed_down.contains(kUs * known.slowed_down);
    held["waiting"] += c.waiting.contains(kUs * known.waiting);
    held["together"] += c.together.contains(kUs * known.together);
    held["stragglers"] += c.stragglers.contains(kUs * known.stragglers);
  }
  return held;
}

TEST(Calibration, IntervalsHoldTheTruthAsOftenAsTheySay) {
  for (const Known& known : jobs()) {
    for (const auto& [what, runs] : holding_runs(known)) {
      EXPECT_GE(runs, 180u) << known.name << ": " << what;
      EXPECT_LT(runs, 200u) << known.name << ": " << what;
    }
  }
}

TEST(Calibration, TellsWhichShareOfItsTimeARankHadACore) {
  const FakeTimes times = jobs().front().times;
  FakeJob job(times, 0.05);
  job.cpu_share = {0.98, 0.61};
  const Calibration c = measure(job, times);
  ASSERT_EQ(c.cpu_share.size(), 2u);
  EXPECT_NEAR(c.cpu_share[0], 0.98, 1e-9);
  EXPECT_NEAR(c.cpu_share[1], 0.61, 1e-9);
}

TEST(Calibration, ADriftCancels) {
  const Known known = jobs().back();
  FakeJob job(known.times, 0.0, 1, 0.02);  // 2% per second
  const Calibration c = measure(job, known.times, 10.0);
  EXPECT_NEAR(c.scaling_efficiency.value, known.efficiency(), 5e-4);
  EXPECT_NEAR(c.exposed_fraction.value, known.fraction, 5e-3);
}

TEST(Calibration, ExposedCommunicationIsNeitherCutOffAtNothingNorAtAll) {
  FakeTimes free{{{100 * kUs, 1 * kUs}, {20 * kUs, 0.0}}};
  bool below = false;
  for (unsigned seed = 0; seed < 20; ++seed) {
    FakeJob job(free, 0.01, seed);
    below = below || measure(job, free, 4.0).exposed_fraction.value < 0.0;
  }
  EXPECT_TRUE(below);
  FakeTimes slow{{{50 * kUs, 5 * kUs}, {50 * kUs, 5 * kUs}}};
  slow.beside = 3.0;
  FakeJob job(slow);
  EXPECT_GT(measure(job, slow).exposed_fraction.value, 0.8);
  slow.buckets.back().communication = 5 * kUs;
  slow.beside = 1e3;  // nothing is computed beside communication
  FakeJob stopped(slow);
  EXPECT_NEAR(measure(stopped, slow).exposed_fraction.value, 1.0, 1e-2);
}

TEST(Calibration, RoundsLastASecondAndGoOnUntilTheIntervalIsNarrow) {
  const FakeTimes times = jobs().front().times;
  FakeJob quiet(times, 0.0005);
  EXPECT_EQ(measure(quiet, times, 20.0).rounds.size(), 8u);
  EXPECT_NEAR(quiet.now, 8.0, 0.5);
  FakeJob noisy(times, 0.02);
  const Calibration c = measure(noisy, times, 200.0);
  EXPECT_GT(c.rounds.size(), 20u);
  EXPECT_LT(2 * c.scaling_efficiency.half_width, 0.01);
  FakeJob hopeless(times, 0.2);
  EXPECT_GT(measure(hopeless, times, 20.0).scaling_efficiency.half_width, 0.01);
  EXPECT_LE(hopeless.now, 20.0);
  EXPECT_EQ(measure(hopeless, times, 20.0).limit_seconds, 20.0);
  EXPECT_FALSE(measure(hopeless, times, 20.0).unspent_limit_seconds);
  EXPECT_FALSE(c.limit_seconds);
  EXPECT_EQ(c.unspent_limit_seconds, 200.0);
  EXPECT_NEAR(c.seconds, noisy.now, 1.0);
  FakeJob unasked(times, 0.0005);
  EXPECT_FALSE(measure(unasked, times, {20.0, 60.0}).unspent_limit_seconds) << "nobody asked for 20 s";
  FakeJob hurried(times, 0.02);
  EXPECT_EQ(measure(hurried, times, 2.0).rounds.size(), 4u);  // of half a second
}

TEST(Calibration, OneRoundHasNoInterval) {
  FakeTimes times{{{30.0, 1.0}}};
  FakeJob job(times);
  const Calibration c = measure(job, times, 1.0);
  EXPECT_EQ(c.rounds.size(), 1u);
  EXPECT_TRUE(std::isinf(c.scaling_efficiency.half_width));
  EXPECT_NEAR(c.scaling_efficiency.value, 30.0 / 31.0, 1e-12);
  EXPECT_EQ(job.steps.at(TimedWork::step), (std::vector<std::uint64_t>{1, 1}));
}

TEST(Calibration, MarksRoundsInWhichAClockFell) {
  const FakeTimes times = jobs().front().times;
  FakeJob job(times);
  int windows = 0;
  job.sm_mhz = [&](TimedWork work) {
    if (work != TimedWork::step) return 1980.0;
    return ++windows > 4 ? 1530.0 : 1970.0;  // two windows a round
  };
  const std::vector<CalibrationRound> rounds = measure(job, times).rounds;
  ASSERT_EQ(rounds.size(), 8u);
  for (std::size_t i = 0; i < rounds.size(); ++i) EXPECT_EQ(rounds[i].clock_fell, i >= 2) << i;
  EXPECT_DOUBLE_EQ(rounds.back().step_sm_mhz, 1530.0);
}

/// A rank's core, which other programs take by turns of some milliseconds.
class TakenCore {
 public:
  TakenCore(double taken, unsigned seed) : taken_(taken), random_(seed) {}

  double waited = 0.0;  ///< So far.

  /// Until `time`, without work.
  void idle(double time) { run(time - now_, 0.0); }
  /// The end of `seconds` of work.
  double work(double seconds) {
    run(0.0, seconds);
    return now_;
  }

 private:
  /// Goes on until so much time has passed and so much work is done.
  void run(double time, double work) {
    while (time > 1e-12 || work > 1e-12) {
      if (left_ <= 0.0) turn();
      const double wanted = work <= 1e-12 ? time : own_ ? work : left_;  // work goes on in own turns only
      const double passed = std::min(left_, wanted);
      now_ += passed;
      left_ -= passed;
      time -= passed;
      if (own_) work -= passed;
      if (!own_) waited += passed;
    }
  }
  void turn() {
    constexpr double kTurn = 4e-3;
    own_ = !own_ || taken_ == 0.0;
    const double length = own_ ? kTurn : kTurn * taken_ / (1.0 - taken_);
    left_ = length * std::uniform_real_distribution(0.5, 1.5)(random_);
  }

  double taken_;
  std::mt19937 random_;
  bool own_ = false;
  double now_ = 0.0;
  double left_ = 0.0;  ///< Of the present turn.
};

/// Ranks that compute and then meet, on cores that other programs take.
struct TakenTimes {
  std::vector<double> compute = {0.06, 0.06};
  double communication = 0.003;
  double taken =
      0.5;  ///< Of the time of a core on which a rank works, by other programs. Rank 0 alone has half of that.
  Meeting meeting = Meeting::at_start;
  double noise = 0.0;
  std::string crowd = {};

  double step() const { return std::ranges::max(compute) + communication; }
  double efficiency() const { return compute.front() / step(); }
};

class TakenJob final : public TimedJob {
 public:
  TakenJob(TakenTimes times, unsigned seed) : times_(std::move(times)), random_(seed) {}

  double seconds = 0.0;  ///< Of all windows.

  Window time(TimedWork work, std::uint64_t steps, std::uint64_t /*lead*/) override {
    const bool alone = work == TimedWork::alone;
    const std::size_t ranks = alone ? 1 : times_.compute.size();
    std::vector<TakenCore> cores;
    for (std::size_t r = 0; r < ranks; ++r) cores.emplace_back(alone ? 0.5 * times_.taken : times_.taken, random_());
    const bool meets = work == TimedWork::step || work == TimedWork::communication;
    std::vector<Pieces> pieces(times_.compute.size());
    std::vector<double> now(ranks, 0.0);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      const double noise = 1.0 + times_.noise * normal_(random_);
      if (meets && times_.meeting == Meeting::at_start) meet(cores, now);
      for (std::size_t r = 0; r < ranks && work != TimedWork::communication; ++r) {
        now[r] = cores[r].work(times_.compute[r] * noise);
      }
      if (meets && times_.meeting == Meeting::later) meet(cores, now);
      for (std::size_t r = 0; r < ranks; ++r) pieces[r].push_back({step, now[r], cores[r].waited});
    }
    now.resize(times_.compute.size(), 0.0);
    seconds += std::ranges::max(now);
    return {now, 0.0, std::vector(times_.compute.size(), 0.0), pieces, times_.meeting};
  }

  std::vector<double> time_compute(bool /*communicates*/) override { return times_.compute; }
  std::string crowd() override { return times_.crowd; }
  std::optional<CoreShare::Taken> taken() override { return CoreShare::Taken{times_.taken, 1.0, true}; }

 private:
  void meet(std::vector<TakenCore>& cores, std::vector<double>& now) const {
    const double all_there = std::ranges::max(now);
    for (std::size_t r = 0; r < cores.size(); ++r) {
      cores[r].idle(all_there);
      now[r] = cores[r].work(times_.communication);
    }
    const double end = std::ranges::max(now);
    for (TakenCore& core : cores) core.idle(end);
    std::ranges::fill(now, end);
  }

  TakenTimes times_;
  std::mt19937 random_;
  std::normal_distribution<double> normal_;
};

Calibration measure(TakenJob& job, const TakenTimes& times, const CalibrationLimit& limit = 16.0) {
  return calibrate(job, 128.0, times.step() / (1.0 - times.taken), false, limit);
}

/// Their seconds alone would give efficiencies of about 75%.
TEST(Calibration, WaitsForCoresThatOthersTakeAreNoTimeOfTheStep) {
  const std::map<std::string, TakenTimes> jobs = {
      {"long steps", {}},
      {"long steps that end with the sums", {.meeting = Meeting::later}},
      {"steps shorter than a turn", {.compute = {0.9e-3, 0.9e-3}, .communication = 0.1e-3}},
      {"short steps that end with the sums",
       {.compute = {0.9e-3, 0.9e-3}, .communication = 0.1e-3, .meeting = Meeting::later}},
      {"several steps in a window", {.compute = {0.02, 0.02}, .communication = 0.002}},
      {"four ranks, one of them slow", {.compute = {0.06, 0.06, 0.066, 0.06}}},
      {"four ranks in windows of several steps", {.compute = {0.02, 0.02, 0.022, 0.02}, .communication = 0.002}},
      {"one loop", {.taken = 0.25}}};
  for (const auto& [name, times] : jobs) {
    for (unsigned seed = 0; seed < 5; ++seed) {
      TakenJob job(times, seed);
      const Calibration c = measure(job, times);
      EXPECT_NEAR(c.scaling_efficiency.value, times.efficiency(), 0.05) << name << ", seed " << seed;
      EXPECT_TRUE(c.scaling_efficiency.contains(times.efficiency())) << name << ", seed " << seed;
      EXPECT_EQ(c.disturbed.why, fmt::format("other programs took {:.0f}% of the cores", 100.0 * times.taken));
      EXPECT_TRUE(c.disturbed.by_others);
      EXPECT_NEAR(c.core_wait, times.taken, 0.1) << name;
    }
  }
}

/// A rank lends its core while its messages travel.
TEST(UndelayedSteps, MessagesBetweenHostsTakeTheirTimeWhateverTheCoresRun) {
  const std::vector<Pieces> ranks = {{{1, 0.5, 0.4}, {2, 1.0, 0.8}}, {{1, 0.4, 0.3}, {2, 1.1, 0.7}}};
  const std::vector by_itself = {0.1, 0.1};
  EXPECT_EQ(undelayed_steps(ranks, by_itself, Meeting::between_hosts), (std::vector{0.55, 0.55}));
  EXPECT_LT(undelayed_steps(ranks, by_itself, Meeting::later).front(), 0.2);
}

TEST(Calibration, IntervalsOfDisturbedJobsHoldTheTruth) {
  unsigned held = 0;
  for (unsigned seed = 0; seed < 100; ++seed) {
    const TakenTimes times{.taken = seed % 2 == 0 ? 0.5 : 0.3, .noise = 0.03};
    TakenJob job(times, 100 + seed);
    held += measure(job, times, 8.0).scaling_efficiency.contains(times.efficiency());
  }
  EXPECT_GE(held, 92u);
}

TEST(Calibration, WaitsForCoresThatTheJobTakesFromItselfCount) {
  const TakenTimes times{.crowd = "2 threads share 1 core"};
  TakenJob job(times, 1);
  const Calibration c = measure(job, times);
  EXPECT_LT(c.scaling_efficiency.value, times.efficiency() - 0.1);
  EXPECT_EQ(c.disturbed.why, "2 threads share 1 core");
  EXPECT_FALSE(c.disturbed.by_others);
}

TEST(Calibration, AWideIntervalOfAnUndisturbedJobIsMeasuredForLonger) {
  const FakeTimes times = jobs().front().times;
  FakeJob noisy(times, 0.2);
  const Calibration wide = measure(noisy, times, {8.0, 24.0});
  EXPECT_GT(noisy.now, 8.0);
  EXPECT_LE(noisy.now, 24.5);
  EXPECT_EQ(wide.limit_seconds, 24.0);
  FakeJob calm(times, 0.01);
  measure(calm, times, {8.0, 24.0});
  EXPECT_LE(calm.now, 8.5);
  const TakenTimes taken{.noise = 0.2};
  TakenJob disturbed(taken, 1);
  EXPECT_EQ(measure(disturbed, taken, {8.0, 24.0}).limit_seconds, 8.0);  // of time with cores, which is half of it
  EXPECT_GE(disturbed.seconds, 9.0);
  EXPECT_LE(disturbed.seconds, 20.0);
}

/// A job whose steps have noise that lasts for several rounds: successive windows have a correlation of 0.78, and
/// rounds of 0.7.
class CorrelatedJob final : public TimedJob {
 public:
  CorrelatedJob(double noise, std::mt19937& random) : noise_(noise), random_(random), state_(normal_(random_)) {}

  Window time(TimedWork work, std::uint64_t steps, std::uint64_t /*lead*/) override {
    constexpr double kStep = 1e-3;
    double seconds = kStep * static_cast<double>(steps);
    if (work == TimedWork::communication) seconds *= 0.1;
    if (work == TimedWork::step) seconds *= 1.0 + noise_ * next();
    return {{seconds, work == TimedWork::alone ? 0.0 : seconds}};
  }
  std::vector<double> time_compute(bool /*communicates*/) override { return {1e-3, 1e-3}; }

 private:
  double next() {
    constexpr double kCorrelation = 0.78;
    const double now = state_;
    state_ = kCorrelation * state_ + std::sqrt(1.0 - kCorrelation * kCorrelation) * normal_(random_);
    return now;
  }

  double noise_;
  std::mt19937& random_;
  std::normal_distribution<double> normal_;
  double state_;
};

/// Measuring ends when the interval is narrow, which it may be by chance.
TEST(Calibration, AnIntervalThatEndedTheRoundsHoldsTheTruth) {
  constexpr unsigned kRuns = 400;
  std::mt19937 random(1);
  unsigned held = 0;
  unsigned early = 0;
  for (unsigned run = 0; run < kRuns; ++run) {
    CorrelatedJob job(0.007, random);
    const Calibration c = calibrate(job, 64.0, 1e-3, false, 17.0);
    held += c.scaling_efficiency.contains(1.0);
    early += c.unspent_limit_seconds.has_value();
  }
  EXPECT_GE(held, 0.935 * kRuns) << "fewer if one narrow interval ends the rounds";
  EXPECT_GT(early, 0.1 * kRuns);
}

TEST(Calibration, TakesAQuarterOfTheTimedStepsAndMoreForAWideInterval) {
  EXPECT_EQ(calibration_limit(0.0, 0.1, 0.0).seconds, 4.0);
  EXPECT_EQ(calibration_limit(0.0, 20.0, 0.0).seconds, 5.0);
  EXPECT_EQ(calibration_limit(0.0, 20.0, 0.0).if_wide_seconds, 15.0);
  EXPECT_EQ(calibration_limit(0.0, 3600.0, 0.0).seconds, 20.0);
  EXPECT_EQ(calibration_limit(0.0, 2.5, 60.0).seconds, 15.0);
  EXPECT_EQ(calibration_limit(0.0, 80.0, 60.0).seconds, 20.0);
  EXPECT_EQ(calibration_limit(2.5, 80.0, 60.0).seconds, 2.5);
  EXPECT_EQ(calibration_limit(2.5, 80.0, 60.0).if_wide_seconds, 2.5);
  EXPECT_EQ(calibration_limit(0.0, 0.1, 8.0, true).seconds, 20.0) << "slow steps of GPUs";
  EXPECT_EQ(calibration_limit(0.0, 3600.0, 0.0, true).if_wide_seconds, 20.0);
  EXPECT_EQ(calibration_limit(2.5, 80.0, 60.0, true).seconds, 2.5);
}

}  // namespace
}  // namespace ddptrain
