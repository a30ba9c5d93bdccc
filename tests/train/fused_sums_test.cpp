#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <random>

#include "runtime/ops/optimizers/optimizer.h"
#include "runtime/train/measure/measured_steps.h"
#include "tests/train/trainer_rig.h"

namespace ddptrain::trainer_test {
namespace {

std::string fused_path() { return test_world().size() > 1 ? "symmetric+fused" : "none"; }

/// |actual - expected| / |expected - start|: 1 for what has not moved, 2 for what has moved the other way.
double difference_to_movement(const std::vector<double>& actual, const std::vector<double>& expected,
                              const std::vector<double>& start) {
  double difference = 0.0;
  double movement = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += (actual.at(i) - expected[i]) * (actual.at(i) - expected[i]);
    movement += (expected[i] - start.at(i)) * (expected[i] - start.at(i));
  }
  return std::sqrt(difference / movement);
}

/// What another order of adding may change. Adam divides by the magnitude of a gradient: where the ranks' gradients
/// nearly cancel, rounding decides its sign and so moves a weight by a whole step.
double rounding_bound(OptimizerKind kind, Precision precision) {
  const bool bf16 = precision == Precision::bf16;
  if (kind == OptimizerKind::sgd) return bf16 ? 3e-2 : 1e-4;
  return bf16 ? 0.3 : 3e-2;
}

/// Three steps with and without `fused_sum`, which takes the path `path`, from `start`.
void expect_same_but_for_rounding(Rig& rig, Precision precision, TrainerOptions options, const std::string& path,
                                  const std::vector<double>& start) {
  const OptimizerKind kind = options.optimizer.kind;
  const std::string what = fmt::format("{} {} clip {}", rule_of(kind).name, name_of(precision), options.clip_norm);
  options.fused_sum = false;
  const auto expected = parameters_after(rig, options, 3);
  options.fused_sum = true;
  EXPECT_EQ(rig.trainer(options, data())->gradient_path().name, path);
  const auto actual = parameters_after(rig, options, 3);
  if (test_world().size() <= 2) {
    EXPECT_EQ(actual, expected) << what;
  } else {
    EXPECT_LT(difference_to_movement(actual, expected, start), rounding_bound(kind, precision)) << what;
  }
}

TEST_P(EachDevice, FusedSumOfTheLastBucketChangesNothingButRounding) {
  if (GetParam() == DeviceKind::cpu) GTEST_SKIP() << "is a kernel";
  for (const Precision precision : precisions()) {
    Rig rig(GetParam(), precision, true);
    const auto start = parameters_after(rig, options_for_ranks(), 0);
    for (const OptimizerKind kind :
         {OptimizerKind::sgd, OptimizerKind::adam, OptimizerKind::adamw, OptimizerKind::lion}) {
      if (kind == OptimizerKind::lion && test_world().size() > 2) continue;  // rounding alone tips signs over
      TrainerOptions options = options_for_ranks();
      options.optimizer.kind = kind;
      options.optimizer.schedule.peak = 0.001f;
      expect_same_but_for_rounding(rig, precision, options, fused_path(), start);
    }
  }
}

TEST_P(EachDevice, CommunicationAloneIsWhatAStepSends) {
  if (GetParam() == DeviceKind::cpu) GTEST_SKIP() << "its sums are MPI's, with and without --fused-sum";
  Rig rig(GetParam(), Precision::bf16, true);
  TrainerOptions options = options_for_ranks();
  options.graph = false;
  const auto trainer = rig.trainer(options, data());
  ASSERT_EQ(trainer->gradient_path().name, fused_path());
  trainer->run(1);
  MeasuredSteps steps(*trainer);
  StepGraph communication = steps.graph_of(steps.communication());
  const auto timeline = rig.device->make_timeline();
  rig.device->record(*timeline, [&] { communication.run(1); });
  rig.device->synchronize();
  std::size_t fused = 0;
  for (const TimelineSpan& span : timeline->spans()) fused += span.name.find("sum and update") != std::string::npos;
  EXPECT_EQ(fused, test_world().size() > 1 ? 1u : 0u);
}

TEST_P(EachDevice, FusedSumGivesAllRanksTheSameBitsWithAndWithoutGraph) {
  if (GetParam() == DeviceKind::cpu) GTEST_SKIP() << "is a kernel";
  for (const Precision precision : precisions()) {
    Rig rig(GetParam(), precision, true);
    TrainerOptions options = options_for_ranks();
    options.last_bucket_bytes = std::size_t{100} << 10;
    EXPECT_EQ(rig.trainer(options, data())->gradient_path().name, fused_path());
    const std::string first = hash_after(rig, options, 60);
    for (const std::string& hash : test_world().all_gather(first)) EXPECT_EQ(hash, first);
    options.graph = false;
    EXPECT_EQ(hash_after(rig, options, 60), first);
  }
}

constexpr std::uint64_t kStepsApart = 301;  // 43 * 7

/// 0 to 3 ms, drawn anew each time.
PausingModel::Pause uneven_pause(unsigned seed) {
  return [random = std::mt19937(seed)]() mutable { return std::chrono::microseconds(random() % 3000); };
}

/// Trains in portions of `portion` steps, between which the host waits.
void expect_same_when_held_apart(Rig& rig, const TrainerOptions& options, std::uint64_t portion,
                                 const std::string& path, const std::string& expected) {
  for (const unsigned seed : {1u, 2u}) {
    const unsigned own = seed * 100 + static_cast<unsigned>(test_world().rank());
    const auto trainer =
        rig.trainer(options, data(), std::make_unique<PausingModel>(rig.cnn(options, data()), uneven_pause(own)));
    ASSERT_EQ(trainer->gradient_path().name, path);
    for (std::uint64_t done = 0; done < kStepsApart; done += portion) {
      trainer->run(portion);
      rig.device->synchronize();
    }
    EXPECT_EQ(trainer->state().parameter_hash(), expected);
  }
}

/// A rank that is a round ahead writes into the packets of the other parity: odd and even rounds alternate, and neither
/// may be taken for the other, however far apart the ranks are.
TEST_P(EachDevice, FusedSumsOfRanksThatAreHeldApartInTimeAreTheSame) {
  if (GetParam() == DeviceKind::cpu) GTEST_SKIP() << "is a kernel";
  Rig rig(GetParam(), Precision::bf16, true);
  TrainerOptions options = options_for_ranks();
  options.last_bucket_bytes = std::size_t{100} << 10;
  options.graph = false;
  expect_same_when_held_apart(rig, options, 7, fused_path(), hash_after(rig, options, kStepsApart));
}

std::string peers_path() { return test_world().size() > 1 ? "peers" : "none"; }

TEST_P(EachDevice, SumsByPeersChangeNothingButRounding) {
  if (GetParam() == DeviceKind::cpu) GTEST_SKIP() << "are kernels";
  for (const Precision precision : precisions()) {
    Rig rig(GetParam(), precision, true);
    const auto start = parameters_after(rig, options_for_ranks(), 0);
    for (const OptimizerKind kind : {OptimizerKind::sgd, OptimizerKind::adamw}) {
      for (const float clip_norm : {0.0f, 0.05f}) {
        TrainerOptions options = options_for_ranks();
        options.zero = Zero::state;
        options.clip_norm = clip_norm;
        options.optimizer.kind = kind;
        options.optimizer.schedule.peak = 0.001f;
        expect_same_but_for_rounding(rig, precision, options, peers_path(), start);
      }
    }
  }
}

TEST_P(EachDevice, SumsByPeersOfRanksThatAreHeldApartInTimeAreTheSame) {
  if (GetParam() == DeviceKind::cpu) GTEST_SKIP() << "are kernels";
  Rig rig(GetParam(), Precision::bf16, true);
  TrainerOptions options = options_for_ranks();
  options.zero = Zero::state;
  const std::string expected = hash_after(rig, options, kStepsApart);
  for (const std::string& hash : test_world().all_gather(expected)) EXPECT_EQ(hash, expected);
  options.graph = false;
  expect_same_when_held_apart(rig, options, kStepsApart, peers_path(), expected);
}

}  // namespace
}  // namespace ddptrain::trainer_test
