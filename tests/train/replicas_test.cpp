#include <algorithm>

#include "runtime/core/error.h"
#include "runtime/train/replica/replica_check.h"
#include "runtime/train/run/run_guard.h"
#include "runtime/train/run/training_run.h"
#include "tests/support/says.h"
#include "tests/train/rig.h"

namespace ddptrain {
namespace {

TrainerOptions options_with(Zero zero) {
  TrainerOptions options;
  options.batch = 12 / test_world().size();
  options.zero = zero;
  return options;
}

/// Flips a bit in the middle of an array on one rank.
void flip_bit(const Trainer& trainer, Device& device, const std::string& name, int rank) {
  if (test_world().rank() != rank) return;
  const std::vector<StateArray> arrays = trainer.state().arrays();
  const auto array = std::ranges::find(arrays, name, &StateArray::name);
  ASSERT_NE(array, arrays.end()) << name;
  const Tensor& values = array->pieces.at(0).values;
  char* byte = values.as<char>() + values.bytes() / 2;
  char flipped = 0;
  device.copy_to_host(&flipped, byte, 1);
  flipped = static_cast<char>(flipped ^ 0x10);
  device.copy_to_device(byte, &flipped, 1);
}

TEST_P(EachDevice, OneBitOnOneRankIsFoundAndTheRankIsNamed) {
  const World& world = test_world();
  if (world.size() == 1) GTEST_SKIP() << "needs several ranks";
  Rig rig(GetParam(), GetParam() == DeviceKind::cpu ? Precision::fp32 : Precision::bf16);
  for (const Zero zero : kZeroStages) {
    const auto trainer = rig.trainer(options_with(zero), some_images());
    RunGuard guard(*trainer, world);
    trainer->run(4);
    EXPECT_EQ(error_of([&] { guard.check_replicas(4); }), "");
    std::vector<std::string> names = {"step"};
    if (zero < Zero::weights) names.insert(names.end(), {"weight/fc1.weight", "weight/fc2.bias"});
    if (zero == Zero::nothing) names.insert(names.end(), {"slot_0/conv1.weight", "slot_1/fc2.bias"});
    for (const std::string& name : names) {
      const int rank = world.size() - 1;
      flip_bit(*trainer, *rig.device, name, rank);
      const std::string message = error_of([&] { guard.check_replicas(9); });
      EXPECT_TRUE(says(message, "after step 9 the replicas differ")) << name << ": " << message;
      EXPECT_TRUE(says(message, "After step 4 they were the same")) << message;
      EXPECT_TRUE(says(message, fmt::format("rank {} (", rank))) << message;
      EXPECT_TRUE(says(message, " in " + name + ".")) << message;
      EXPECT_EQ(says(message, "from most ranks"), world.size() > 2) << message;
      flip_bit(*trainer, *rig.device, name, rank);
      EXPECT_EQ(error_of([&] { guard.check_replicas(4); }), "");
    }
  }
}

TEST(Replicas, MostRanksDecideWhichOneIsWrong) {
  if (test_world().size() < 3) GTEST_SKIP() << "needs three ranks";
  Rig rig(DeviceKind::cpu, Precision::fp32);
  const auto trainer = rig.trainer(options_with(Zero::nothing), some_images());
  RunGuard guard(*trainer, test_world());
  flip_bit(*trainer, *rig.device, "weight/fc1.weight", 0);
  const std::string message = error_of([&] { guard.check_replicas(0); });
  EXPECT_TRUE(says(message, "rank 0 (")) << message;
  EXPECT_FALSE(says(message, "rank 1 (")) << message;
}

/// Ranks that each have a part of the same replica: what is not split is the same on all of them.
TEST(Replicas, RanksThatSplitLayersAreComparedToo) {
  const World& world = test_world();
  if (world.size() == 1) GTEST_SKIP() << "needs several ranks";
  Rig rig(DeviceKind::cpu, Precision::fp32);
  const auto trainer = rig.trainer(options_with(Zero::nothing), some_images());
  const std::unique_ptr<World> alone = world.split(world.rank());
  TensorGroup group(world, *rig.communicator, *rig.device);
  const auto difference = [&] { return differing_replicas(trainer->state(), alone.get(), &group, *rig.device); };
  EXPECT_EQ(difference(), "");
  flip_bit(*trainer, *rig.device, "weight/fc2.bias", 1);
  EXPECT_TRUE(says(difference(), "rank 1 (")) << difference();
  EXPECT_TRUE(says(difference(), " in weight/fc2.bias")) << difference();
}

/// Ranks that get no values from rank 0, as each talks to itself alone.
TEST(Replicas, ATrainerIsNotMadeOfReplicasThatDiffer) {
  if (test_world().size() == 1) GTEST_SKIP() << "needs several ranks";
  Rig rig(DeviceKind::cpu, Precision::fp32);
  rig.communicator = make_self_communicator(*rig.device);
  const std::string message = error_of([&] { rig.trainer(options_with(Zero::nothing), some_images()); });
  EXPECT_TRUE(says(message, "the parameters at the start differ: rank ")) << message;
  EXPECT_TRUE(says(message, " in weight/")) << message;
}

TEST(Replicas, ARunEndsAtTheNextComparison) {
  if (test_world().size() == 1) GTEST_SKIP() << "needs several ranks";
  Rig rig(DeviceKind::cpu, Precision::fp32);
  const auto trainer = rig.trainer(options_with(Zero::nothing), some_images());
  RunOptions run;
  run.steps = 40;
  run.verify_every = 5;
  run.baseline = false;
  run.trained = [] { ADD_FAILURE() << "parameters that differ are not to be saved"; };
  RunHooks hooks;
  hooks.after_first_steps = [&] { flip_bit(*trainer, *rig.device, "weight/conv2.weight", 0); };
  const std::string message = error_of([&] { run_training(*trainer, test_world(), run, nullptr, hooks); });
  EXPECT_TRUE(says(message, "after step 5 the replicas differ")) << message;
  EXPECT_TRUE(says(message, "After step 0 they were the same")) << message;
}

TEST(Replicas, RanksThatTrainOnTheirOwnAreNotCompared) {
  Rig rig(DeviceKind::cpu, Precision::fp32);
  TrainerOptions options = options_with(Zero::nothing);
  options.overlap = OverlapMode::none;
  const auto trainer = rig.trainer(options, some_images());
  trainer->run(2);
  RunGuard guard(*trainer, test_world());
  EXPECT_EQ(error_of([&] { guard.check_replicas(2); }), "");
}

}  // namespace
}  // namespace ddptrain
