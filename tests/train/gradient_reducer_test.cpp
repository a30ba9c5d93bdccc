#include "runtime/train/gradient_reducer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <tuple>

#include "runtime/core/error.h"
#include "tests/train/fake_device.h"

namespace ddptrain {
namespace {

/// Ragged parameters, some of one element, in six buckets.
std::vector<ParameterSpec> ragged() {
  return {{"a", {300}}, {"b", {1}}, {"c", {257}}, {"d", {7, 11}}, {"e", {1}}, {"f", {512}}, {"g", {3}}, {"h", {1}}};
}

class GradientReducerTest : public testing::Test {
 protected:
  GradientReducer make(OverlapMode mode) {
    return {arena, mode == OverlapMode::none ? nullptr : &communicator, device, mode,
            [this](std::size_t bucket, Stream) { reduced.push_back(bucket); }};
  }
  std::vector<std::size_t> in_order() const {
    std::vector<std::size_t> order(arena.specs().size());
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  std::vector<std::size_t> all_buckets() const {
    std::vector<std::size_t> buckets(arena.plan().buckets.size());
    std::iota(buckets.begin(), buckets.end(), 0);
    return buckets;
  }
  std::vector<void*> slices_in_order() const {
    std::vector<void*> slices;
    for (const std::size_t bucket : all_buckets()) slices.push_back(arena.bucket_gradients(bucket).data);
    return slices;
  }

  FakeDevice device;
  FakeCommunicator communicator{device, 3};  // 3 divides none of the sizes
  ParameterArena arena{ragged(), {4 * 301, 16, 2}, device, communicator};
  std::vector<std::size_t> reduced;
};

TEST_F(GradientReducerTest, SendsEveryBucketOnceInIndexOrderWhateverTheOrderOfReadiness) {
  ASSERT_GE(arena.plan().buckets.size(), 4u);
  std::mt19937 random(1);
  std::vector<std::size_t> order = in_order();
  for (int trial = 0; trial < 50; ++trial) {
    std::shuffle(order.begin(), order.end(), random);
    communicator.sent.clear();
    reduced.clear();
    GradientReducer reducer = make(trial % 2 == 0 ? OverlapMode::on : OverlapMode::off);
    reducer.begin(true);
    for (const std::size_t parameter : order) reducer.ready(parameter);
    reducer.finish();
    EXPECT_EQ(communicator.sent, slices_in_order());
    EXPECT_EQ(reduced, all_buckets());
  }
}

TEST_F(GradientReducerTest, SendsABucketAsSoonAsItAndTheOnesBeforeAreComplete) {
  GradientReducer reducer = make(OverlapMode::on);
  reducer.begin(true);
  for (std::size_t parameter = arena.specs().size() - 1; parameter > 0; --parameter) reducer.ready(parameter);
  EXPECT_TRUE(communicator.sent.empty());
  reducer.ready(0);
  EXPECT_EQ(communicator.sent.size(), arena.plan().buckets.size());
  reducer.finish();
}

TEST_F(GradientReducerTest, LeavesTheLastBucketToWhoeverSumsIt) {
  for (const OverlapMode mode : {OverlapMode::on, OverlapMode::off}) {
    communicator.sent.clear();
    reduced.clear();
    std::vector<std::string> last;
    GradientReducer reducer(
        arena, &communicator, device, mode, [this](std::size_t bucket, Stream) { reduced.push_back(bucket); },
        [&](std::size_t bucket, Stream stream) { last.push_back(fmt::format("{} {}", bucket, device.name(stream))); });
    for (const bool last_micro_step : {false, true}) {
      EXPECT_TRUE(last.empty());
      reducer.begin(last_micro_step);
      for (const std::size_t parameter : in_order()) reducer.ready(parameter);
      reducer.finish();
    }
    auto slices = slices_in_order();
    auto buckets = all_buckets();
    EXPECT_EQ(last, std::vector{fmt::format("{} compute", buckets.back())});
    slices.pop_back();
    buckets.pop_back();
    EXPECT_EQ(communicator.sent, slices);
    EXPECT_EQ(reduced, buckets);
  }
}

TEST_F(GradientReducerTest, OverlapOffSendsNothingBeforeFinish) {
  GradientReducer reducer = make(OverlapMode::off);
  reducer.begin(true);
  for (const std::size_t parameter : in_order()) reducer.ready(parameter);
  EXPECT_TRUE(communicator.sent.empty());
  reducer.finish();
  EXPECT_EQ(communicator.sent, slices_in_order());
}

TEST_F(GradientReducerTest, SendsNothingDuringAccumulation) {
  GradientReducer reducer = make(OverlapMode::on);
  for (const bool last : {false, false, true}) {
    reducer.begin(last);
    for (const std::size_t parameter : in_order()) reducer.ready(parameter);
    reducer.finish();
    EXPECT_EQ(communicator.sent.size(), last ? arena.plan().buckets.size() : 0u);
    EXPECT_EQ(reduced.size(), communicator.sent.size());
  }
}

TEST_F(GradientReducerTest, WhatFollowsABucketWaitsForItsMessage) {
  communicator.arrived = 0;
  GradientReducer reducer = make(OverlapMode::backward);
  reducer.begin(true);
  for (const std::size_t parameter : in_order()) {
    if (parameter + 1 == arena.specs().size()) communicator.arrived = 2;
    reducer.ready(parameter);
    EXPECT_EQ(reduced.size(), parameter + 1 == arena.specs().size() ? 2u : 0u);
  }
  reducer.finish();
  EXPECT_EQ(reduced, all_buckets());
}

/// Of a step whose first sum is late on its way.
class LateSumTest : public GradientReducerTest {
 protected:
  void step() {
    communicator.late = {communicator.sent.size()};
    reducer.begin(true);
    for (const std::size_t parameter : in_order()) reducer.ready(parameter);
    reducer.finish();
  }
  std::vector<std::size_t> late_first() const {
    std::vector<std::size_t> order = all_buckets();
    std::rotate(order.begin(), order.begin() + 1, order.end());
    return order;
  }

  GradientReducer reducer = make(OverlapMode::on);
};

TEST_F(LateSumTest, HoldsUpNothingButWhatReadsItsWeights) {
  step();
  EXPECT_EQ(reduced.size() + 1, all_buckets().size()) << "a step does not wait for it, nor do other buckets";
  for (const std::size_t parameter : in_order()) {
    if (arena.plan().bucket_of[parameter] != 0) reducer.wait_for(parameter);
  }
  EXPECT_EQ(reduced.size() + 1, all_buckets().size());
  communicator.late.clear();
  reducer.wait_for(0);
  EXPECT_EQ(reduced, late_first());
  reducer.wait_for(0);
  device.synchronize();
  EXPECT_EQ(reduced, late_first()) << "once";
}

TEST_F(LateSumTest, IsAwaitedByTheNextBackwardPassAndByWhateverWaitsForTheDevice) {
  step();
  device.synchronize();
  EXPECT_EQ(reduced, late_first());
  reduced.clear();
  step();
  reducer.begin(true);
  EXPECT_EQ(reduced, late_first());
}

TEST_F(LateSumTest, IsAwaitedAtTheEnd) {
  {
    GradientReducer other = make(OverlapMode::on);
    communicator.late = {communicator.sent.size()};
    other.begin(true);
    for (const std::size_t parameter : in_order()) other.ready(parameter);
    other.finish();
    EXPECT_FALSE(communicator.late.empty());
  }
  EXPECT_TRUE(communicator.late.empty()) << "its memory is about to go";
  device.synchronize();
  EXPECT_EQ(reduced.size() + 1, all_buckets().size()) << "what was left is not done";
}

TEST_F(LateSumTest, MakesProgressUntilItIsThere) {
  step();
  std::uint64_t tests = communicator.tests;
  device.progress();
  EXPECT_GT(communicator.tests, tests);
  communicator.late.clear();
  reducer.wait_for(0);
  tests = communicator.tests;
  device.progress();
  EXPECT_EQ(communicator.tests, tests);
}

TEST_F(GradientReducerTest, WithoutCommunicationBucketsAreStillUpdated) {
  GradientReducer reducer = make(OverlapMode::none);
  reducer.begin(true);
  for (const std::size_t parameter : in_order()) reducer.ready(parameter);
  reducer.finish();
  EXPECT_EQ(reduced, all_buckets());
  EXPECT_TRUE(communicator.sent.empty());
}

TEST_F(GradientReducerTest, TheLastBucketStaysOnTheComputeStreamAndTheOthersAreJoinedAtTheEnd) {
  GradientReducer reducer = make(OverlapMode::on);
  device.log.clear();
  reducer.begin(true);
  for (const std::size_t parameter : in_order()) reducer.ready(parameter);
  reducer.finish();
  std::vector<std::string> expected;
  for (const std::size_t bucket : all_buckets()) {
    const bool last = bucket + 1 == arena.plan().buckets.size();
    if (!last) expected.push_back("communication waits for compute");
    expected.push_back(fmt::format("all-reduce of {} on {}", arena.bucket_gradients(bucket).size(),
                                   last ? "compute" : "communication"));
  }
  expected.push_back("compute waits for communication");
  EXPECT_EQ(device.log, expected);
}

TEST_F(GradientReducerTest, ScattersTheSumsOfAShardedArena) {
  ArenaOptions options{std::size_t{4} * 301, 16};
  options.shard_state = true;
  const ParameterArena sharded(ragged(), options, device, communicator);
  GradientReducer reducer(sharded, &communicator, device, OverlapMode::on,
                          [this](std::size_t bucket, Stream) { reduced.push_back(bucket); });
  EXPECT_TRUE(reducer.communicates());
  device.log.clear();
  reducer.begin(true);
  for (const std::size_t parameter : in_order()) reducer.ready(parameter);
  reducer.finish();
  EXPECT_EQ(reduced, all_buckets());
  EXPECT_EQ(communicator.sent.size(), all_buckets().size());
  EXPECT_EQ(device.log.at(1), fmt::format("reduce-scatter of {} on communication", sharded.bucket_gradients(0).size()));
}

/// Of four ranks with two virtual ones each; the gradients of the first of the two have been kept.
class TreeReducerTest : public testing::Test {
 protected:
  std::vector<std::string> step(bool sharded, bool communicates) {
    ArenaOptions options{1, 0};
    options.shard_state = sharded;
    const ParameterArena arena({{"a", {300}}, {"b", {7}}}, options, device, communicator);
    GradientTree tree(arena, 2, device, communicator);
    EXPECT_TRUE(tree.exchanges());
    GradientReducer reducer(
        arena, communicates ? &communicator : nullptr, device, communicates ? OverlapMode::on : OverlapMode::none,
        [&](std::size_t bucket, Stream) { device.log.push_back(fmt::format("bucket {} is reduced", bucket)); }, nullptr,
        &tree);
    device.log.clear();
    reducer.begin(true);
    reducer.ready(0);
    reducer.ready(1);
    reducer.finish();
    return device.log;
  }

  FakeDevice device;
  FakeCommunicator communicator{device, 4};
};

TEST_F(TreeReducerTest, ExchangesAddsAndGathersEveryBucket) {
  EXPECT_EQ(step(false, true),
            (std::vector<std::string>{"communication waits for compute", "sum of 2 nodes of 512 on communication",
                                      "all-to-all of 512 on communication", "tree of 4 leaves of 128 on communication",
                                      "all-gather of 512 on communication", "bucket 0 is reduced",
                                      "sum of 2 nodes of 512 on compute", "all-to-all of 512 on compute",
                                      "tree of 4 leaves of 128 on compute", "all-gather of 512 on compute",
                                      "bucket 1 is reduced", "compute waits for communication"}));
}

TEST_F(TreeReducerTest, AShardNeedsNoGathering) {
  EXPECT_EQ(step(true, true),
            (std::vector<std::string>{"communication waits for compute", "sum of 2 nodes of 512 on communication",
                                      "all-to-all of 512 on communication", "tree of 4 leaves of 128 on communication",
                                      "bucket 0 is reduced", "sum of 2 nodes of 512 on compute",
                                      "all-to-all of 512 on compute", "tree of 4 leaves of 128 on compute",
                                      "bucket 1 is reduced", "compute waits for communication"}));
}

TEST_F(TreeReducerTest, WithoutCommunicationARanksSubtreeIsWhatIsReduced) {
  EXPECT_EQ(step(false, false),
            (std::vector<std::string>{"communication waits for compute", "sum of 2 nodes of 512 on communication",
                                      "bucket 0 is reduced", "sum of 2 nodes of 512 on compute", "bucket 1 is reduced",
                                      "compute waits for communication"}));
}

TEST_F(TreeReducerTest, TwoNumbersHaveOneOrder) {
  FakeCommunicator two(device, 2);
  const ParameterArena arena({{"a", {300}}}, {1, 0}, device, two);
  EXPECT_FALSE(GradientTree(arena, 1, device, two).exchanges());
  EXPECT_FALSE(GradientTree(arena, 4, device, two).exchanges()) << "sums of FP32 gradients are FP32";
  EXPECT_EQ(GradientTree(arena, 1, device, two).bytes(), 0u);
}

TEST_F(TreeReducerTest, RefusesWhatIsNoBinaryTree) {
  FakeCommunicator three(device, 3);
  const ParameterArena arena({{"a", {300}}}, {1, 0}, device, three);
  EXPECT_THROW(GradientTree(arena, 1, device, three), Error);
  const ParameterArena other({{"a", {300}}}, {1, 0}, device, communicator);
  EXPECT_THROW(GradientTree(other, 3, device, communicator), Error);
}

/// bf16 gradients: 2 bytes; sums: 4.
TEST(GradientTree, KeepsALevelOfSumsForEachLevelOfTheTree) {
  FakeDevice device(false, Precision::bf16);
  for (const auto& [ranks, neighbours, bytes] : {std::tuple{1, 1, 0},
                                                 {1, 2, 2},
                                                 {1, 4, 2 + 4},
                                                 {1, 8, 2 + 4 + 4},
                                                 {2, 1, 0},
                                                 {2, 2, 2 + 4 + 4},
                                                 {2, 4, 2 + 4 + 4},
                                                 {4, 1, 2}}) {
    FakeCommunicator communicator(device, ranks);
    const ParameterArena arena({{"a", {512}}}, {1, 0}, device, communicator);
    EXPECT_EQ(GradientTree(arena, neighbours, device, communicator).bytes(), static_cast<std::size_t>(512 * bytes))
        << ranks << " ranks of " << neighbours;
  }
}

/// A stream that never waited for the captured one must not be waited for.
TEST_F(GradientReducerTest, OneBucketStaysOnTheComputeStream) {
  ParameterArena small({{"a", {300}}}, {1 << 20, 16, 2}, device, communicator);
  ASSERT_EQ(small.plan().buckets.size(), 1u);
  GradientReducer reducer(small, &communicator, device, OverlapMode::on, [](std::size_t, Stream) {});
  device.log.clear();
  reducer.begin(true);
  reducer.ready(0);
  reducer.finish();
  EXPECT_EQ(device.log,
            std::vector<std::string>{fmt::format("all-reduce of {} on compute", small.bucket_gradients(0).size())});
}

TEST_F(GradientReducerTest, RefusesWrongUse) {
  GradientReducer reducer = make(OverlapMode::on);
  EXPECT_THROW(reducer.ready(0), Error);
  EXPECT_THROW(reducer.finish(), Error);
  reducer.begin(true);
  EXPECT_THROW(reducer.begin(true), Error);
  reducer.ready(3);
  EXPECT_THROW(reducer.ready(3), Error);
  EXPECT_THROW(reducer.ready(arena.specs().size()), Error);
  EXPECT_THROW(reducer.finish(), Error) << "parameters are missing";
}

}  // namespace
}  // namespace ddptrain
