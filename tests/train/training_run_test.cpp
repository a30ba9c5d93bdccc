#include "runtime/train/run/training_run.h"

#include <gtest/gtest.h>

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "models/mlp/mlp.h"
#include "runtime/core/error.h"
#include "runtime/core/process/cores.h"
#include "runtime/device/cpu/cpu_device.h"
#include "runtime/device/queueing.h"
#include "runtime/train/measure/calibration.h"
#include "runtime/train/measure/core_share.h"
#include "runtime/train/measure/trace.h"
#include "runtime/train/replica/replica_check.h"
#include "runtime/train/report/report.h"
#include "tests/support/captured_log.h"
#include "tests/support/says.h"
#include "tests/train/replay.h"
#include "tests/train/trainer_rig.h"

namespace ddptrain::trainer_test {
namespace {

TEST_P(EachDevice, EvaluationCountsEveryImageOnce) {
  Rig rig(GetParam(), Precision::fp32);
  const TrainerOptions options = options_for_ranks();
  const auto trainer = rig.trainer(options, make_synthetic(230, 7));  // 23 test images
  const MetricSums sums = trainer->evaluate();
  EXPECT_EQ(sums.samples, 23u);
  const MetricSums again = trainer->evaluate();
  EXPECT_EQ(again.samples, 23u);
  EXPECT_EQ(again.correct, sums.correct);
  EXPECT_NEAR(sums.loss / 23.0, 2.3, 0.3) << "an untrained network";
}

TEST_P(EachDevice, TellsTheNormOfTheWholeGradientWhateverSumsIt) {
  Rig rig(GetParam(), Precision::fp32, true);
  TrainerOptions options = options_for_ranks();
  options.fused_sum = false;
  const auto plain = rig.trainer(options, data());
  plain->run(3);
  double squares = 0.0;
  for (const double value : gradients_of(plain->arena(), *rig.device)) squares += value * value;
  const double expected = std::sqrt(squares);
  ASSERT_GT(expected, 0.0);
  EXPECT_NEAR(plain->gradient_norm() / expected, 1.0, 1e-4);
  struct Variant {
    const char* name;
    Zero zero;
    bool fused;
    float clip_norm;
    OverlapMode overlap;
    std::int64_t virtual_ranks = 0;
  };
  for (const Variant& v : {Variant{"fused", Zero::nothing, true, 0.0f, OverlapMode::on},
                           Variant{"sharded", Zero::state, false, 0.0f, OverlapMode::on},
                           Variant{"clipped", Zero::nothing, false, 1e6f, OverlapMode::off},
                           Variant{"sharded and clipped", Zero::state, false, 1e6f, OverlapMode::on},
                           Variant{"ZeRO-3", Zero::weights, false, 0.0f, OverlapMode::on},
                           Variant{"ZeRO-3 and clipped", Zero::weights, false, 1e6f, OverlapMode::on},
                           Variant{"virtual ranks", Zero::nothing, false, 0.0f, OverlapMode::on, 4},
                           Variant{"sharded virtual ranks", Zero::state, false, 0.0f, OverlapMode::on, 4},
                           Variant{"ZeRO-2 of virtual ranks", Zero::gradients, false, 0.0f, OverlapMode::on, 4},
                           Variant{"ZeRO-3 of virtual ranks", Zero::weights, false, 0.0f, OverlapMode::on, 4}}) {
    if (v.virtual_ranks > 0 && test_world().size() == 3) continue;
    if (v.virtual_ranks > 0) options.batch = kSamplesPerStep / v.virtual_ranks;
    options.virtual_ranks = v.virtual_ranks;
    options.zero = v.zero;
    options.fused_sum = v.fused;
    options.clip_norm = v.clip_norm;
    options.overlap = v.overlap;
    Rig own(GetParam(), Precision::fp32, true);  // see Communicator::allocate()
    const auto trainer = own.trainer(options, data());
    trainer->run(3);
    EXPECT_NEAR(trainer->gradient_norm() / expected, 1.0, 1e-3) << v.name;
    trainer->run(3);
    EXPECT_EQ(trainer->state().parameter_hash(), hash_after(own, options, 6)) << v.name;
  }
}

TEST_P(EachDevice, TheLastLossIsThatOfTheStepsSinceTheMark) {
  Rig rig(GetParam(), Precision::fp32);
  const auto trainer = rig.trainer(options_for_ranks(), data());
  trainer->run(4);
  trainer->metrics().mark_training();
  trainer->run(1);
  const MetricSums last = trainer->metrics().since_mark();
  const MetricSums all = trainer->metrics().take_training();
  trainer->run(1);
  const MetricSums next = trainer->metrics().take_training();
  EXPECT_EQ(last.samples, static_cast<std::uint64_t>(kSamplesPerStep));
  EXPECT_EQ(all.samples, 5u * kSamplesPerStep);
  EXPECT_EQ(next.samples, static_cast<std::uint64_t>(kSamplesPerStep)) << "what was taken does not come again";
  EXPECT_GT(last.loss, 0.2 * next.loss);
  EXPECT_LT(last.loss, all.loss);
}

/// A CPU with graphs, which call again what they captured.
class CpuWithGraphs final : public CpuDevice {
 public:
  CpuWithGraphs() : CpuDevice({}) {}
  std::unique_ptr<Graph> capture(const std::function<void()>& work) override {
    ++captures;
    return std::make_unique<Replay>(work);
  }
  int captures = 0;
};

TEST(TrainingRun, LongStepsHaveAGraphOfOneStepHoweverOftenTheyAreLogged) {
  for (const std::int64_t log_every : {0, 1, 2}) {
    Rig rig(DeviceKind::cpu, Precision::fp32);
    auto owned = std::make_unique<CpuWithGraphs>();
    const CpuWithGraphs& device = *owned;
    rig.communicator.reset();
    rig.device = std::move(owned);
    rig.communicator = make_communicator(test_world(), *rig.device);
    const TrainerOptions options = options_for_ranks();
    const std::chrono::duration<double> pause(2.0 * kLongStepSeconds);
    const auto trainer =
        rig.trainer(options, data(), std::make_unique<PausingModel>(rig.cnn(options, data()), [=] { return pause; }));
    RunOptions run;
    run.baseline = false;
    run.steps = 6;
    run.log_every = log_every;
    run_training(*trainer, test_world(), run, nullptr);
    EXPECT_EQ(device.captures, 1) << log_every;
  }
}

/// Notes for what the watch says that the host waits while it queues a pass.
class WatchedModel final : public tests::ModelAround {
 public:
  WatchedModel(std::unique_ptr<Model> model, const Watch& watch, std::vector<const char*>& waits)
      : ModelAround(std::move(model)), watch_(watch), waits_(waits) {}

  void forward(std::size_t unit) override {
    waits_.push_back(watch_.waiting_for());
    ModelAround::forward(unit);
  }
  void backward(std::size_t unit, bool accumulate, const Ready& ready) override {
    waits_.push_back(watch_.waiting_for());
    ModelAround::backward(unit, accumulate, ready);
  }

 private:
  const Watch& watch_;
  std::vector<const char*>& waits_;
};

/// A watchdog must not take a host for busy that waits in a launch, in training, evaluation and measurements.
TEST_P(EachDevice, QueueingAPassIsAWaitOnGpusOnly) {
  Rig rig(GetParam(), Precision::fp32);
  TrainerOptions options = options_for_ranks();
  options.graph = false;
  std::vector<const char*> waits;
  const auto trainer = rig.trainer(
      options, data(), std::make_unique<WatchedModel>(rig.cnn(options, data()), rig.device->watch(), waits));
  RunOptions run;
  run.baseline = test_world().size() > 1 && ranks_per_gpu(test_world().size()) == 1;
  run.steps = 5;
  run_training(*trainer, test_world(), run, nullptr);
  trace_steps(*trainer, 1);
  ASSERT_GE(waits.size(), 2u * 5u);
  for (const char* const wait : waits) {
    EXPECT_STREQ(wait, GetParam() == DeviceKind::cpu ? nullptr : Queueing::kQueueWait);
  }
}

TEST_P(EachDevice, RunMeasuresItself) {
  Rig rig(GetParam(), Precision::fp32);
  for (const Zero zero : {Zero::nothing, Zero::weights}) {
    TrainerOptions options = options_for_ranks();
    options.zero = zero;
    options.clip_norm = zero > Zero::nothing ? 1.0f : 0.0f;
    const auto trainer = rig.trainer(options, data());
    RunOptions run;
    run.epochs = 3;
    run.min_seconds = zero > Zero::nothing ? 0.4 : 0.0;
    const RunResult result = run_training(*trainer, test_world(), run, nullptr);
    ASSERT_EQ(result.epochs.size(), 3u);
    EXPECT_EQ(result.epochs.back().step, 3 * (100 / kSamplesPerStep));
    EXPECT_LT(result.epochs.back().train_loss, result.epochs.front().train_loss);
    EXPECT_GT(result.rate.median, 0.0);
    EXPECT_GE(result.rate.windows, 1u);
    EXPECT_GE(result.rate.seconds, run.min_seconds);
    EXPECT_EQ(result.clocks.known, 0u);
    ASSERT_TRUE(result.calibration);
    const Calibration& c = *result.calibration;
    EXPECT_LE(c.compute_step_mean_seconds, c.compute_step_slowest_seconds());
    const std::size_t ranks = c.compute_step_seconds.size();
    if (test_world().size() == 1) {
      EXPECT_EQ(c.scaling_efficiency.value, 1.0);
      EXPECT_EQ(c.scaling_efficiency.half_width, 0.0);
      EXPECT_EQ(ranks, 0u);
    } else {
      EXPECT_EQ(ranks, static_cast<std::size_t>(test_world().size()));
      EXPECT_EQ(c.cpu_share.size(), GetParam() == DeviceKind::cpu ? ranks : 0u);
      EXPECT_GT(c.communication_seconds, 0.0);
      EXPECT_NEAR(c.samples_per_second * c.step_seconds, kSamplesPerStep, 1e-9);
      EXPECT_NEAR(c.scaling_efficiency.value, c.samples_per_second / test_world().size() / c.baseline_per_second, 1e-9);
      const double lost = c.together.value + c.stragglers.value + c.slowed_down.value + c.waiting.value;
      EXPECT_NEAR(lost, c.step_seconds - c.alone_seconds, 1e-9 * c.step_seconds);
      double compute_without = std::numeric_limits<double>::infinity();  // the machine may stand still during a round
      for (const CalibrationRound& round : c.rounds) {
        EXPECT_GT(round.compute_beside, 0.0);
        compute_without = std::min(compute_without, round.compute_without);
      }
      EXPECT_LT(compute_without, 100.0 * c.compute_step_slowest_seconds());  // of one step
    }
  }
}

TEST_P(EachDevice, RunLogsItsProgress) {
  Rig rig(GetParam(), Precision::fp32);
  const auto trainer = rig.trainer(options_for_ranks(), data());
  RunOptions run;
  run.baseline = false;
  run.min_seconds = 2.0;  // longer than the steps of the run take, also beside other work
  run.progress_seconds = 0.1;
  const CapturedLog captured;
  Report report(RunInfo{});
  run_training(*trainer, test_world(), run, test_world().rank() == 0 ? &report : nullptr);
  const auto steps = 100 / kSamplesPerStep;
  if (test_world().rank() > 0) return;
  EXPECT_CONTAINS(captured.text(), fmt::format("tep {}/{}", steps, steps));
}

TEST(LogEvery, AboutAHundredStepsAreLogged) {
  for (const auto& [steps, lines] : {std::pair{1, 1}, {5, 5}, {50, 50}, {468, 93}, {10'000, 100}, {1'000'000, 100}}) {
    EXPECT_EQ(steps / log_every({}, steps), lines) << steps;
  }
  for (std::int64_t steps = 100; steps < 2000; ++steps) {
    const std::int64_t lines = steps / log_every({}, steps);
    EXPECT_TRUE(67 <= lines && lines <= 149) << steps;
  }
  RunOptions options;
  options.log_every = 0;
  EXPECT_EQ(log_every(options, 500), 0);
  options.log_every = 7;
  EXPECT_EQ(log_every(options, 500), 7);
}

struct LoggedRun {
  std::vector<nlohmann::json> lines;  ///< Events of --metrics; on rank 0.
  std::string hash;
  double train_loss = 0.0;

  std::vector<nlohmann::json> steps() const {
    std::vector<nlohmann::json> found;
    for (const nlohmann::json& line : lines) {
      if (line.at("event") == "step") found.push_back(line);
    }
    return found;
  }
};

/// On GPUs a model whose kernels log themselves; on CPUs a quick one.
std::unique_ptr<Model> logging_model(Rig& rig, const TrainerOptions& options) {
  if (rig.device->kind() == DeviceKind::cuda) return rig.cnn(options, data());
  return make_mlp(*rig.device, options.batch, make_resident(data(), *rig.device), MlpShape{.hidden = 16});
}

LoggedRun logged_run(DeviceKind kind, const TrainerOptions& options, std::optional<std::int64_t> log_every) {
  Rig rig(kind, Precision::fp32);
  const auto trainer = rig.trainer(options, data(), logging_model(rig, options));
  RunOptions run;
  run.baseline = false;
  run.epochs = 20;
  run.eval_samples = 1;
  run.log_every = log_every;
  const std::string path = testing::TempDir() + fmt::format("logged_run_{}.jsonl", getpid());
  LoggedRun logged;
  {
    MetricsFile metrics(path);
    RunInfo info;
    info.description.unit = "images";
    Report report(std::move(info), &metrics);
    const RunResult result = run_training(*trainer, test_world(), run, test_world().rank() == 0 ? &report : nullptr);
    logged.hash = result.parameter_hash;
    logged.train_loss = result.epochs.back().train_loss;
  }
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) logged.lines.push_back(nlohmann::json::parse(line));
  std::filesystem::remove(path);
  return logged;
}

/// Steps are logged without a wait, in graphs, too: the values are those of --log-every 1, and the bits stay.
TEST_P(EachDevice, LoggedValuesAreThoseOfEachStepAndChangeNothing) {
  if (test_world().size() > 2) GTEST_SKIP() << "two ranks show it";
  for (const float clip_norm : {0.0f, 1.0f}) {
    TrainerOptions options = options_for_ranks();
    options.clip_norm = clip_norm;
    const std::int64_t steps = 20 * (100 / kSamplesPerStep);
    const LoggedRun none = logged_run(GetParam(), options, 0);
    const LoggedRun each = logged_run(GetParam(), options, 1);
    const LoggedRun some = logged_run(GetParam(), options, std::nullopt);
    EXPECT_EQ(each.hash, none.hash);
    EXPECT_EQ(some.hash, none.hash);
    EXPECT_EQ(each.train_loss, none.train_loss);
    EXPECT_EQ(some.train_loss, none.train_loss);
    if (test_world().rank() > 0) continue;
    EXPECT_EQ(none.steps().size(), 0u);
    const std::vector<nlohmann::json> each_step = each.steps();
    ASSERT_EQ(std::ssize(each_step), steps);
    const std::int64_t every = log_every({}, steps);
    ASSERT_EQ(std::ssize(some.steps()), steps / every);
    for (const nlohmann::json& line : some.steps()) {
      const std::int64_t step = line.at("step");
      double loss = 0.0;
      std::int64_t covered = 0;  // by the line: it begins after the line before, or with the epoch
      for (std::int64_t k = step; k > step - every && each_step[k - 1].at("epoch") == line.at("epoch"); --k) {
        loss += each_step[k - 1].at("loss").get<double>();
        ++covered;
      }
      const nlohmann::json& same = each_step[step - 1];
      EXPECT_EQ(same.at("step"), step);
      EXPECT_NEAR(line.at("loss"), loss / static_cast<double>(covered), 1e-9);
      for (const char* name : {"epoch", "samples", "learning_rate"}) EXPECT_EQ(line.at(name), same.at(name)) << name;
      EXPECT_GT(line.at("images_per_second"), 0.0);
      EXPECT_GT(same.at("gradient_norm"), 0.0);
      const bool has_norm = !line.at("gradient_norm").is_null();
      EXPECT_TRUE(has_norm || clip_norm == 0.0f);
      if (has_norm) {
        EXPECT_EQ(line.at("gradient_norm"), same.at("gradient_norm"));
      }
    }
  }
}

/// A calibration with a last rank that is slow by `delay` in every step.
Calibration calibrate_with_a_slow_rank(Rig& rig, std::chrono::duration<double> delay) {
  const World& world = test_world();
  const TrainerOptions options = options_for_ranks();
  std::unique_ptr<Model> model = rig.cnn(options, data());
  if (world.rank() == world.size() - 1) model = std::make_unique<PausingModel>(std::move(model), [=] { return delay; });
  const auto trainer = rig.trainer(options, data(), std::move(model));
  return calibrate(*trainer, world, kSamplesPerStep / delay.count(), 30 * delay.count());
}

/// The share of its time that a rank does not sleep, if it sleeps for `delay` in each step without communication.
double share_awake(const Calibration& c, std::size_t rank, double delay) {
  double sum = 0.0;
  int windows = 0;
  for (const CalibrationRound& round : c.rounds) {
    for (const TimedWindow& window : round.windows) {
      if (window.work != TimedWork::compute_step) continue;
      sum += 1.0 - delay * static_cast<double>(window.steps) / window.seconds[rank];
      ++windows;
    }
  }
  return sum / windows;
}

TEST(CoreShare, KnowsWhetherTheJobHasEnoughCores) {
  const World& world = test_world();
  const CoreShare crowded(world, 100'000);
  EXPECT_CONTAINS(crowded.crowd(), "00000 threads share ");
  CoreShare share(world, 1);
  const std::optional<CoreShare::Taken> taken = share.taken();
  if (!taken) return;
  EXPECT_GE(taken->share, 0.0);
  EXPECT_LE(taken->share, 1.0);
}

/// A moment is too short to count what other programs take of the cores.
TEST(CoreShare, AMomentIsJudgedByTheWaitsForACore) {
  if (test_world().size() > 1) GTEST_SKIP() << "ranks that share one core are a crowd";
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  CPU_ZERO(&one);
  CPU_SET(*allowed_cores().begin(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  std::atomic<bool> done = false;
  std::thread other([&] {
    while (!done) continue;
  });
  CoreShare share(test_world(), 1);
  const auto start = std::chrono::steady_clock::now();
  std::string why;
  while (why.empty() && std::chrono::steady_clock::now() - start < std::chrono::milliseconds(400)) {
    why = share.disturbance().why;
  }
  done = true;
  other.join();
  sched_setaffinity(0, sizeof(before), &before);
  EXPECT_TRUE(says(why, "of its time for a core") || says(why, "of the cores")) << why;
}

/// Other work on this machine may delay ranks as long as a short delay does: it is tried with longer ones, too.
TEST(Calibrate, TellsASlowRankFromRanksThatAreSlowTogether) {
  const World& world = test_world();
  if (world.size() == 1) GTEST_SKIP() << "needs several ranks";
  const auto slow_rank = static_cast<std::size_t>(world.size() - 1);
  Rig rig(DeviceKind::cpu, Precision::fp32);
  std::string why = "not tried";
  for (const double delay : {0.1, 0.3, 0.9, 2.7}) {
    const Calibration c = calibrate_with_a_slow_rank(rig, std::chrono::duration<double>(delay));
    const std::vector<double>& ranks = c.compute_step_seconds;
    ASSERT_EQ(ranks.size(), static_cast<std::size_t>(world.size()));
    EXPECT_GE(ranks[slow_rank], delay);
    EXPECT_GT(c.cpu_share[slow_rank], 0.0);
    EXPECT_LE(c.cpu_share[slow_rank], share_awake(c, slow_rank, delay) + 1e-9);
    EXPECT_NEAR(c.rank_0.value, ranks.front() / c.compute_step_mean_seconds, 1e-9);
    EXPECT_GE(c.compute_step_slowest_seconds(), ranks[slow_rank]);
    const double mean = c.compute_step_mean_seconds;
    EXPECT_LT(mean, c.compute_step_slowest_seconds());
    EXPECT_GE(mean, delay / world.size());
    const double alone = kSamplesPerStep / world.size() / c.baseline_per_second;
    EXPECT_NEAR(alone, c.step_seconds * c.scaling_efficiency.value, 1e-9);

    const double stragglers = c.stragglers.value;
    const double exposed = c.exposed.value;
    why = std::max_element(ranks.begin(), ranks.end()) - ranks.begin() != static_cast<std::ptrdiff_t>(slow_rank)
              ? "another rank is the slowest"
          : alone >= delay        ? "rank 0 is a fast one"
          : stragglers <= exposed ? "waiting for the slow rank is not communication"
                                  : "";
    if (why.empty()) break;
  }
  EXPECT_EQ(why, "");
}

TEST(CheckSame, NamesTheRanksThatDiffer) {
  const World& world = test_world();
  EXPECT_NO_THROW(check_same_on_all_ranks(world, "x", "the parameters"));
  if (world.size() < 3) return;
  const std::string mine = world.rank() == 2 ? "y" : "x";
  const auto check = [&] { check_same_on_all_ranks(world, mine, "the parameters"); };
  EXPECT_CONTAINS(error_message<Error>(check), "y on rank 2");
}

}  // namespace
}  // namespace ddptrain::trainer_test
