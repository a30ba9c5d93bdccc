#include "runtime/train/step/gradient_reducer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

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
    GradientSync& sync = mode == OverlapMode::none ? *none : *all_reduce;
    return {arena, sync, mode, [this](std::size_t b, Stream) { reduced.push_back(b); }};
  }
  std::vector<std::size_t> in_order() const {
    std::vector<std::size_t> order(arena.specs().size());
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  /// The whole backward pass.
  void ready(GradientReducer& reducer) const {
    for (const std::size_t parameter : in_order()) reducer.ready(parameter);
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
  std::unique_ptr<GradientSync> all_reduce = make_all_reduce(arena);
  std::unique_ptr<GradientSync> none = make_no_sync();
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
    reducer.begin(0, true);
    for (const std::size_t parameter : order) reducer.ready(parameter);
    reducer.finish();
    EXPECT_EQ(communicator.sent, slices_in_order());
    EXPECT_EQ(reduced, all_buckets());
  }
}

TEST_F(GradientReducerTest, SendsABucketAsSoonAsItAndTheOnesBeforeAreComplete) {
  GradientReducer reducer = make(OverlapMode::on);
  reducer.begin(0, true);
  for (std::size_t parameter = arena.specs().size() - 1; parameter > 0; --parameter) reducer.ready(parameter);
  EXPECT_TRUE(communicator.sent.empty());
  reducer.ready(0);
  EXPECT_EQ(communicator.sent.size(), arena.plan().buckets.size());
  reducer.finish();
}

TEST_F(GradientReducerTest, OverlapOffSendsNothingBeforeFinish) {
  GradientReducer reducer = make(OverlapMode::off);
  reducer.begin(0, true);
  ready(reducer);
  EXPECT_TRUE(communicator.sent.empty());
  reducer.finish();
  EXPECT_EQ(communicator.sent, slices_in_order());
}

TEST_F(GradientReducerTest, SendsNothingDuringAccumulation) {
  GradientReducer reducer = make(OverlapMode::on);
  for (const std::int64_t pass : {0, 1, 2}) {
    const bool last = pass == 2;
    reducer.begin(pass, last);
    ready(reducer);
    reducer.finish();
    EXPECT_EQ(communicator.sent.size(), last ? arena.plan().buckets.size() : 0u);
    EXPECT_EQ(reduced.size(), communicator.sent.size());
  }
}

TEST_F(GradientReducerTest, WhatFollowsABucketWaitsForItsMessage) {
  communicator.arrived = 0;
  GradientReducer reducer = make(OverlapMode::backward);
  reducer.begin(0, true);
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
  void step() { step_of(reducer); }
  void step_of(GradientReducer& of) {
    communicator.late = {communicator.sent.size()};
    of.begin(0, true);
    ready(of);
    of.finish();
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
  reducer.begin(0, true);
  EXPECT_EQ(reduced, late_first());
}

TEST_F(LateSumTest, IsAwaitedAtTheEnd) {
  {
    GradientReducer other = make(OverlapMode::on);
    step_of(other);
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

/// A stream that never waited for the captured one must not be waited for.
TEST_F(GradientReducerTest, OneBucketStaysOnTheComputeStream) {
  ParameterArena small({{"a", {300}}}, {1 << 20, 16, 2}, device, communicator);
  ASSERT_EQ(small.plan().buckets.size(), 1u);
  const auto sync = make_all_reduce(small);
  GradientReducer reducer(small, *sync, OverlapMode::on, [](std::size_t, Stream) {});
  device.log.clear();
  reducer.begin(0, true);
  reducer.ready(0);
  reducer.finish();
  EXPECT_EQ(device.log,
            std::vector<std::string>{fmt::format("all-reduce of {} on compute", small.bucket_gradients(0).size())});
}

TEST_F(GradientReducerTest, RefusesWrongUse) {
  GradientReducer reducer = make(OverlapMode::on);
  EXPECT_THROW(reducer.ready(0), Error);
  EXPECT_THROW(reducer.finish(), Error);
  reducer.begin(0, true);
  EXPECT_THROW(reducer.begin(0, true), Error);
  reducer.ready(3);
  EXPECT_THROW(reducer.ready(3), Error);
  EXPECT_THROW(reducer.ready(arena.specs().size()), Error);
  EXPECT_THROW(reducer.finish(), Error) << "parameters are missing";
}

}  // namespace
}  // namespace ddptrain
