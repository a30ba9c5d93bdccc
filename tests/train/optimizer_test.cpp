#include "runtime/train/step/optimizer.h"

#include <gtest/gtest.h>

#include "runtime/core/error.h"
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
    options.zero = sharded ? Zero::state : Zero::nothing;
    options.whole_chunks = whole_chunks;
    return {{{"a", {300}}, {"b", {1000}}, {"c", {7}}}, options, device, communicator};
  }

  Log step(bool sharded, float clip_norm, bool whole_chunks = false, OnNonFinite on_nonfinite = OnNonFinite::stop) {
    const ParameterArena arena = make_arena(sharded, whole_chunks);
    Optimizer optimizer(settings_of(OptimizerKind::adamw), clip_norm, arena, &nonfinite, on_nonfinite);
    const auto weights = sharded ? make_gathered_weights(arena) : make_replicated_weights();
    device.log.clear();
    optimizer.begin_step({&state}, *weights);
    optimizer.bucket_reduced(0, device.communication_stream());
    optimizer.bucket_reduced(1, device.communication_stream());
    optimizer.bucket_reduced(2, device.compute_stream());
    optimizer.finish_step();
    return device.log;
  }

  StepState state;
  NonFinite nonfinite;
  FakeDevice device;
  FakeCommunicator communicator{device, 4};
};

TEST_F(OptimizerOrder, UpdatesEveryBucketBehindItsSum) {
  EXPECT_EQ(step(false, 0.0f), (Log{"update from chunk 0 on communication", "update from chunk 1 on communication",
                                    "update from chunk 2 on compute"}));
}

TEST_F(OptimizerOrder, ClippingAndSkippingUpdateWhenTheWholeNormIsKnown) {
  const Log expected{"squares of 512 on communication", "squares of 1024 on communication",
                     "squares of 512 on compute",       "scale from 3 sums on compute",
                     "update from chunk 0 on compute",  "update from chunk 1 on compute",
                     "update from chunk 2 on compute"};
  EXPECT_EQ(step(false, 1.0f), expected);
  EXPECT_EQ(step(false, 0.0f, false, OnNonFinite::skip), expected);
}

TEST_F(OptimizerOrder, ShardsShareTheirNormsAndGatherWhileTheNextIsUpdated) {
  EXPECT_EQ(
      step(true, 1.0f),
      (Log{"squares of 128 on communication", "squares of 256 on communication", "squares of 128 on compute",
           "all-reduce of 3 on compute", "scale from 3 sums on compute", "update from chunk 0 on compute",
           "communication waits for compute", "all-gather of 512 on communication", "update from chunk 1 on compute",
           "communication waits for compute", "all-gather of 1024 on communication", "update from chunk 2 on compute",
           "communication waits for compute", "all-gather of 512 on communication",
           "compute waits for communication"}));
}

/// Rank 0 of four has all of each parameter: a shard has whole chunks.
TEST_F(OptimizerOrder, NormsOfWholeChunksHaveATermForEachChunk) {
  const Log log = step(true, 1.0f, true);
  EXPECT_EQ(Log(log.begin(), log.begin() + 5),
            (Log{"squares of 1 chunks on communication", "squares of 1 chunks on communication",
                 "squares of 1 chunks on compute", "all-reduce of 3 on compute", "scale from 3 sums on compute"}));
}

TEST_F(OptimizerOrder, LambNeedsWholeParameters) {
  const ParameterArena sharded = make_arena(true);
  EXPECT_THROW(Optimizer(settings_of(OptimizerKind::lamb), 0.0f, sharded), Error);
}

}  // namespace
}  // namespace ddptrain
