#include <algorithm>
#include <optional>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/train/run_guard.h"
#include "tests/train/rig.h"

namespace ddptrain {
namespace {

const ImageData& data() {
  static const ImageData images = make_synthetic(600, 7);
  return images;
}

TrainerOptions options_with(std::int64_t local_steps, OptimizerKind kind = OptimizerKind::adam) {
  TrainerOptions options;
  options.batch = 12 / test_world().size();
  options.local_steps = local_steps;
  options.optimizer.kind = kind;
  return options;
}

std::vector<double> mean_over_ranks(std::vector<double> values) {
  const World& world = test_world();
  for (double& value : values) value = world.sum(value) / world.size();
  return values;
}

/// A few, so that the mean over ranks takes no time.
std::vector<double> some_values(const Trainer& trainer) {
  const std::vector<double> all = trainer.arena().master_values();
  std::vector<double> some;
  for (std::size_t i = 0; i < all.size(); i += 997) some.push_back(all[i]);
  return some;
}

bool same_on_all_ranks(const Trainer& trainer) {
  const auto hashes = test_world().all_gather(trainer.state().parameter_hash());
  return std::equal(hashes.begin() + 1, hashes.end(), hashes.begin());
}

TEST(LocalSteps, ReplicasBecomeTheMeanOfThoseThatTrainAlone) {
  const World& world = test_world();
  Rig rig(DeviceKind::cpu, Precision::fp64);
  const auto alone = rig.trainer(options_with(100), data());
  const auto averaged = rig.trainer(options_with(3), data());
  alone->run(3);
  EXPECT_EQ(same_on_all_ranks(*alone), world.size() == 1);
  EXPECT_FALSE(alone->replicas_agree());
  averaged->run(2);
  EXPECT_EQ(same_on_all_ranks(*averaged), world.size() == 1);
  averaged->run(1);
  EXPECT_TRUE(averaged->replicas_agree());
  RunGuard guard(*averaged, world, *rig.device);
  EXPECT_NO_THROW(guard.check_replicas(3));  // moments, too
  EXPECT_LT(relative_difference(some_values(*averaged), mean_over_ranks(some_values(*alone))),
            1e-7);  // 1 / W is an f32
}

TEST(LocalSteps, OneStepOfSgdIsTheStepTakenTogether) {
  Rig rig(DeviceKind::cpu, Precision::fp64);
  const auto together = rig.trainer(options_with(1, OptimizerKind::sgd), data(), false);
  const auto alone = rig.trainer(options_with(2, OptimizerKind::sgd), data(), false);
  together->run(1);
  alone->run(1);
  alone->average();
  EXPECT_LT(relative_difference(some_values(*alone), some_values(*together)), 1e-7);
}

TEST(LocalSteps, BeginWhereTheyAreToldTo) {
  Rig rig(DeviceKind::cpu, Precision::fp32);
  TrainerOptions options = options_with(4);
  options.local_from = 3;
  const auto trainer = rig.trainer(options, data());
  EXPECT_EQ(trainer->steps_to_average(), 3);
  const auto together = rig.trainer(options_with(1), data());
  EXPECT_EQ(together->steps_to_average(), std::nullopt);
  trainer->run(3);
  together->run(3);
  EXPECT_EQ(trainer->state().parameter_hash(), together->state().parameter_hash());
  trainer->run(1);
  EXPECT_EQ(trainer->steps_to_average(), 3);
  EXPECT_FALSE(trainer->replicas_agree());
  trainer->run(7);
  EXPECT_TRUE(trainer->replicas_agree());
  EXPECT_TRUE(same_on_all_ranks(*trainer));
}

TEST(LocalSteps, PiecesOfARunChangeNothing) {
  Rig rig(DeviceKind::cpu, Precision::fp32);
  const auto whole = rig.trainer(options_with(3), data());
  const auto pieces = rig.trainer(options_with(3), data());
  whole->run(9);
  for (const std::uint64_t steps : {1, 4, 2, 2}) pieces->run(steps);
  EXPECT_EQ(whole->state().parameter_hash(), pieces->state().parameter_hash());
}

class LocalStepsOnDevice : public testing::TestWithParam<DeviceKind> {};

INSTANTIATE_TEST_SUITE_P(Devices, LocalStepsOnDevice, testing::Values(DeviceKind::cpu, DeviceKind::cuda),
                         [](const auto& info) { return info.param == DeviceKind::cpu ? "cpu" : "cuda"; });

/// With masters beside bf16 weights on GPUs, and after the step has become a graph.
TEST_P(LocalStepsOnDevice, WeightsAndStateAreTheSameAfterAverages) {
  const World& world = test_world();
  if (!enough_devices(GetParam())) GTEST_SKIP() << "needs a GPU for each of " << world.size() << " ranks";
  Rig rig(GetParam(), GetParam() == DeviceKind::cpu ? Precision::fp32 : Precision::bf16);
  const auto trainer = rig.trainer(options_with(5), data());
  RunGuard guard(*trainer, world, *rig.device);
  for (const int step : {5, 10, 15, 20}) {
    trainer->run(5);
    EXPECT_NO_THROW(guard.check_replicas(step));
  }
  trainer->run(2);
  if (world.size() == 1) return;
  EXPECT_THROW(guard.check_replicas(22), Error);
}

}  // namespace
}  // namespace ddptrain
