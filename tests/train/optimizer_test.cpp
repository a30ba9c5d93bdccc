#include "runtime/train/optimizer.h"

#include <gtest/gtest.h>

#include "runtime/core/error.h"
#include "runtime/train/gradient_reducer.h"
#include "tests/train/fake_device.h"

namespace ddptrain {
namespace {

using Log = std::vector<std::string>;

OptimizerSettings settings_of(OptimizerKind kind) {
  OptimizerSettings settings;
  settings.kind = kind;
  return settings;
}

/// Three buckets of 512, 1024 and 512 elements on four ranks.
class OptimizerOrder : public testing::Test {
 protected:
  ParameterArena make_arena(bool sharded, bool whole_chunks = false) {
    ArenaOptions options{1, 0};
    options.shard_state = sharded;
    options.whole_chunks = whole_chunks;
    options.by_peers = by_peers;
    return {{{"a", {300}}, {"b", {1000}}, {"c", {7}}}, options, device, communicator};
  }

  Log step(bool sharded, float clip_norm, bool communicates, bool whole_chunks = false,
           OnNonFinite on_nonfinite = OnNonFinite::stop) {
    const ParameterArena arena = make_arena(sharded, whole_chunks);
    Optimizer optimizer(settings_of(OptimizerKind::adamw), clip_norm, arena, device, communicator, true, &nonfinite,
                        on_nonfinite);
    device.log.clear();
    optimizer.begin_step({&state}, communicates);
    optimizer.bucket_reduced(0, device.communication_stream());
    optimizer.bucket_reduced(1, device.communication_stream());
    optimizer.bucket_reduced(2, device.compute_stream());
    optimizer.finish_step();
    return device.log;
  }

  /// A step of a sharded arena whose reducer communicates.
  Log step_with_reducer(float clip_norm) {
    const ParameterArena arena = make_arena(true);
    Optimizer optimizer(settings_of(OptimizerKind::adamw), clip_norm, arena, device, communicator, true, &nonfinite);
    const auto reduced = [&](std::size_t bucket, Stream stream) { optimizer.bucket_reduced(bucket, stream); };
    GradientReducer reducer(arena, &communicator, device, OverlapMode::on, reduced);
    device.log.clear();
    optimizer.begin_step({&state}, reducer.communicates());
    reducer.begin(true);
    for (std::size_t parameter = 0; parameter < arena.specs().size(); ++parameter) reducer.ready(parameter);
    reducer.finish();
    optimizer.finish_step();
    return device.log;
  }

  StepState state;
  NonFinite nonfinite;
  bool by_peers = false;
  FakeDevice device;
  FakeCommunicator communicator{device, 4};
};

TEST_F(OptimizerOrder, UpdatesEveryBucketBehindItsSum) {
  EXPECT_EQ(step(false, 0.0f, true), (Log{"update from chunk 0 on communication",
                                          "update from chunk 1 on communication", "update from chunk 2 on compute"}));
}

TEST_F(OptimizerOrder, ShardedWeightsAreGatheredBehindTheirUpdate) {
  // Rank 0 has elements 0 to 127 of "a", 0 to 255 of "b", and all of "c".
  EXPECT_EQ(step(true, 0.0f, true), (Log{"update from chunk 0 on communication", "all-gather of 512 on communication",
                                         "update from chunk 1 on communication", "all-gather of 1024 on communication",
                                         "update from chunk 2 on compute", "all-gather of 512 on compute"}));
}

TEST_F(OptimizerOrder, ClippingAndSkippingUpdateWhenTheWholeNormIsKnown) {
  const Log expected{"squares of 512 on communication", "squares of 1024 on communication",
                     "squares of 512 on compute",       "scale from 3 sums on compute",
                     "update from chunk 0 on compute",  "update from chunk 1 on compute",
                     "update from chunk 2 on compute"};
  EXPECT_EQ(step(false, 1.0f, true), expected);
  EXPECT_EQ(step(false, 0.0f, true, false, OnNonFinite::skip), expected);
}

TEST_F(OptimizerOrder, ShardsShareTheirNormsAndGatherWhileTheNextIsUpdated) {
  EXPECT_EQ(
      step(true, 1.0f, true),
      (Log{"squares of 128 on communication", "squares of 256 on communication", "squares of 128 on compute",
           "all-reduce of 3 on compute", "scale from 3 sums on compute", "update from chunk 0 on compute",
           "communication waits for compute", "all-gather of 512 on communication", "update from chunk 1 on compute",
           "communication waits for compute", "all-gather of 1024 on communication", "update from chunk 2 on compute",
           "communication waits for compute", "all-gather of 512 on communication",
           "compute waits for communication"}));
}

/// Rank 0 of four has all of each parameter: a shard has whole chunks.
TEST_F(OptimizerOrder, NormsOfWholeChunksHaveATermForEachChunk) {
  const Log log = step(true, 1.0f, true, true);
  EXPECT_EQ(Log(log.begin(), log.begin() + 5),
            (Log{"squares of 1 chunks on communication", "squares of 1 chunks on communication",
                 "squares of 1 chunks on compute", "all-reduce of 3 on compute", "scale from 3 sums on compute"}));
}

TEST_F(OptimizerOrder, WithoutCommunicationNothingIsSent) {
  for (const float clip_norm : {0.0f, 1.0f}) {
    communicator.sent.clear();
    step(true, clip_norm, false);
    EXPECT_TRUE(communicator.sent.empty());
  }
}

TEST_F(OptimizerOrder, LambNeedsWholeParameters) {
  const ParameterArena sharded = make_arena(true);
  EXPECT_THROW(Optimizer(settings_of(OptimizerKind::lamb), 0.0f, sharded, device, communicator, true), Error);
}

/// Ranks that reach each other's memory: nothing is queued before backward has ended.
class ByPeers : public OptimizerOrder {
 protected:
  void SetUp() override {
    communicator.reaches_peers = true;
    by_peers = true;
  }
};

TEST_F(ByPeers, SumsAndWeightsGoThroughTheMemoryOfPeers) {
  EXPECT_EQ(step_with_reducer(0.0f),
            (Log{"meeting of 4 on compute", "sum of 4 nodes of 128 on compute", "sum of 4 nodes of 256 on compute",
                 "sum of 4 nodes of 128 on compute", "update from chunk 0 and of 3 peers on compute",
                 "update from chunk 1 and of 3 peers on compute", "update from chunk 2 and of 3 peers on compute",
                 "meeting of 4 on compute"}));
  EXPECT_TRUE(communicator.sent.empty());
}

TEST_F(ByPeers, TheNormIsOfAllRanks) {
  const Log log = step_with_reducer(1.0f);
  EXPECT_EQ(Log(log.begin() + 5, log.begin() + 9), (Log{"sum of 4 nodes of 128 on compute", "squares of 128 on compute",
                                                        "all-reduce of 3 on compute", "scale from 3 sums on compute"}));
}

TEST_F(ByPeers, WithoutCommunicationPeersAreLeftAlone) {
  EXPECT_EQ(step(true, 0.0f, false), (Log{"update from chunk 0 on communication",
                                          "update from chunk 1 on communication", "update from chunk 2 on compute"}));
}

TEST_F(ByPeers, WhereMemoryIsOutOfReachTheCommunicatorSums) {
  communicator.reaches_peers = false;
  EXPECT_FALSE(make_arena(true).reaches_peers());
  communicator.reaches_peers = true;
  EXPECT_TRUE(make_arena(true).reaches_peers());
  EXPECT_FALSE(make_arena(false).reaches_peers());
  by_peers = false;
  EXPECT_FALSE(make_arena(true).reaches_peers());
}

/// Whether the last bucket's sum and update become one.
class FusedSum : public OptimizerOrder {
 protected:
  void SetUp() override {
    device.inbox = 64;
    communicator.reaches_peers = true;
  }
  bool fuses(float clip_norm = 0.0f, bool sharded = false, bool wanted = true,
             OnNonFinite on_nonfinite = OnNonFinite::stop) {
    const ParameterArena arena = make_arena(sharded);
    Optimizer optimizer(settings_of(OptimizerKind::adamw), clip_norm, arena, device, communicator, wanted, &nonfinite,
                        on_nonfinite);
    return optimizer.sums_last_bucket();
  }
};

TEST_F(FusedSum, IsOneOperation) {
  const ParameterArena arena = make_arena(false);
  Optimizer optimizer(settings_of(OptimizerKind::adamw), 0.0f, arena, device, communicator, true);
  ASSERT_TRUE(optimizer.sums_last_bucket());
  optimizer.sum_and_update(2, device.compute_stream());
  EXPECT_EQ(device.log, (Log{"sum over 4 and update from chunk 2 on compute"}));
}

TEST_F(FusedSum, NeedsPeersInReachAndNothingInBetween) {
  EXPECT_TRUE(fuses());
  EXPECT_FALSE(fuses(1.0f));
  EXPECT_FALSE(fuses(0.0f, true));
  EXPECT_FALSE(fuses(0.0f, false, false));
  EXPECT_FALSE(fuses(0.0f, false, true, OnNonFinite::skip));
  communicator.reaches_peers = false;
  EXPECT_FALSE(fuses());
  communicator.reaches_peers = true;
  device.inbox = 0;
  EXPECT_FALSE(fuses());
}

}  // namespace
}  // namespace ddptrain
