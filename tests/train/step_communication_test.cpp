#include "runtime/train/step/step_communication.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <tuple>

#include "runtime/core/error.h"
#include "tests/train/fake_device.h"

namespace ddptrain {
namespace {

using Log = std::vector<std::string>;

std::ptrdiff_t updates_in(const Log& log) {
  return std::ranges::count_if(log, [](const std::string& line) { return line.starts_with("update"); });
}

/// One step of each path on rank 0 of four: what is queued, where, and in which order.
class PathTest : public testing::Test {
 protected:
  PathTest() {
    options.optimizer.kind = OptimizerKind::adamw;
    options.bucket_bytes = 1;
    options.last_bucket_bytes = 0;
  }

  /// Three buckets of 512, 1024 and 512 elements.
  ParameterArena make_arena() { return {specs, arena_options(options, {{"all", 0, 3}}), device, communicator}; }
  Optimizer make_optimizer(const ParameterArena& arena) {
    return {options.optimizer, options.clip_norm, arena, &nonfinite, options.on_nonfinite};
  }
  GradientPath path() {
    const ParameterArena arena = make_arena();
    Optimizer optimizer = make_optimizer(arena);
    return make_step_communication(options, arena, optimizer).path;
  }

  bool overlaps_backward() {
    const ParameterArena arena = make_arena();
    Optimizer optimizer = make_optimizer(arena);
    return make_step_communication(options, arena, optimizer).gradients->overlaps_backward();
  }

  Log step(bool communicates = true) {
    const ParameterArena arena = make_arena();
    Optimizer optimizer = make_optimizer(arena);
    const StepCommunication made = make_step_communication(options, arena, optimizer);
    const std::unique_ptr<GradientSync> no_gradients = make_no_sync();
    const std::unique_ptr<WeightStore> no_weights = make_replicated_weights();
    GradientSync& sync = communicates ? *made.gradients : *no_gradients;
    WeightStore& weights = communicates ? *made.weights : *no_weights;
    const OverlapMode mode = communicates ? OverlapMode::backward : OverlapMode::none;
    GradientReducer reducer(
        arena, sync, mode, [&](std::size_t bucket, Stream stream) { optimizer.bucket_reduced(bucket, stream); },
        made.virtual_ranks.get());
    device.log.clear();
    optimizer.begin_step({&state}, weights);
    reducer.begin(0, true);
    for (std::size_t parameter = 0; parameter < arena.specs().size(); ++parameter) reducer.ready(parameter);
    reducer.finish();
    optimizer.finish_step();
    return device.log;
  }

  std::vector<ParameterSpec> specs = {{"a", {300}}, {"b", {1000}}, {"c", {7}}};
  StepState state;
  NonFinite nonfinite;
  TrainerOptions options;
  FakeDevice device;
  FakeCommunicator communicator{device, 4};
};

TEST_F(PathTest, AllReduceUpdatesEachBucketBehindItsSum) {
  EXPECT_EQ(step(),
            (Log{"communication waits for compute", "all-reduce of 512 on communication",
                 "update parameter 0 on communication", "communication waits for compute",
                 "all-reduce of 1024 on communication", "update parameter 1 on communication, yields",
                 "all-reduce of 512 on compute", "update parameter 2 on compute", "compute waits for communication"}));
}

TEST_F(PathTest, ReduceScatterGathersWeightsBehindTheirUpdate) {
  options.zero = Zero::state;
  const Log log = step();
  // Rank 0 has elements 0 to 127 of "a", 0 to 255 of "b", and all of "c".
  EXPECT_EQ(Log(log.begin(), log.begin() + 4),
            (Log{"communication waits for compute", "reduce-scatter of 512 on communication",
                 "update parameter 0 on communication", "all-gather of 512 on communication"}));
  EXPECT_EQ(Log(log.end() - 6, log.end()), (Log{"reduce-scatter of 512 on compute", "update parameter 2 on compute",
                                                "communication waits for compute", "all-gather of 512 on communication",
                                                "compute waits for communication", "compute waits for communication"}));
}

TEST_F(PathTest, ClippingAndSkippingUpdateWhenTheWholeNormIsKnown) {
  const Log on_cpu{"communication waits for compute",
                   "all-reduce of 512 on communication",
                   "squares of 512",
                   "communication waits for compute",
                   "all-reduce of 1024 on communication",
                   "squares of 1024",
                   "all-reduce of 512 on compute",
                   "squares of 512",
                   "compute waits for communication",
                   "scale from 3 sums on compute",
                   "update parameter 0 1 2 on compute"};
  const Log on_gpu{
      "communication waits for compute",     "all-reduce of 512 on communication", "communication waits for compute",
      "all-reduce of 1024 on communication", "all-reduce of 512 on compute",       "compute waits for communication",
      "squares of 512 and 1024 and 512",     "scale from 3 sums on compute",       "update parameter 0 1 2 on compute"};
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    device.told_kind = kind;
    const Log& expected = kind == DeviceKind::cpu ? on_cpu : on_gpu;
    options.on_nonfinite = OnNonFinite::skip;
    EXPECT_EQ(step(), expected);
    options.on_nonfinite = OnNonFinite::stop;
    options.clip_norm = 1.0f;
    EXPECT_EQ(step(), expected);
    options.clip_norm = 0.0f;
  }
}

TEST_F(PathTest, ANormOfItsOwnAddsAllSquaresOfAGpuTogether) {
  device.told_kind = DeviceKind::cuda;
  for (const std::int64_t virtual_ranks : {0, 8}) {
    options.virtual_ranks = virtual_ranks;
    const ParameterArena arena = make_arena();
    Optimizer optimizer = make_optimizer(arena);
    const std::unique_ptr<WeightStore> weights = make_replicated_weights();
    for (int i = 0; i < 2; ++i) {
      device.log.clear();
      optimizer.gradient_norm(*weights);
      EXPECT_EQ(device.log,
                Log{virtual_ranks > 0 ? "squares of 1 and 1 and 1 chunks" : "squares of 512 and 1024 and 512"});
    }
  }
}

TEST_F(PathTest, ShardsShareTheirNormsAndGatherWhileTheNextIsUpdated) {
  options.zero = Zero::state;
  options.clip_norm = 1.0f;
  const Log log = step();
  const auto sum = std::ranges::find(log, "all-reduce of 3 on compute");
  EXPECT_EQ(Log(sum, log.end()), (Log{"all-reduce of 3 on compute", "scale from 3 sums on compute",
                                      "update parameter 0 on compute", "communication waits for compute",
                                      "all-gather of 512 on communication", "update parameter 1 on compute",
                                      "communication waits for compute", "all-gather of 1024 on communication",
                                      "update parameter 2 on compute", "communication waits for compute",
                                      "all-gather of 512 on communication", "compute waits for communication"}));
  EXPECT_EQ(std::count(log.begin(), sum, "squares of 128"), 2) << "of shares";
}

/// Rank 0 of four has all of each parameter: a shard has whole chunks.
TEST_F(PathTest, NormsOfVirtualRanksHaveATermForEachChunk) {
  options.zero = Zero::state;
  options.clip_norm = 1.0f;
  options.virtual_ranks = 8;
  const Log log = step();
  EXPECT_EQ(std::ranges::count(log, "squares of 1 chunks"), 3);
  EXPECT_EQ(std::ranges::count(log, "all-reduce of 3 on compute"), 1);
}

/// Rank 0 of four has the largest of three matrices, and other ranks the others. The arena is divided, or not.
TEST_F(PathTest, MatricesAreDealtAmongTheRanks) {
  options.optimizer.kind = OptimizerKind::muon;
  specs = {{"a", {20, 15}}, {"b", {40, 25}}, {"c", {7}}};
  specs[0].matrix_rows = {20};
  specs[1].matrix_rows = {10, 5, 5};
  for (const Zero zero : {Zero::nothing, Zero::state}) {
    options.zero = zero;
    const Log log = step();
    const auto begin = std::ranges::find(log, "scale from 3 sums on compute");
    const bool sharded = zero == Zero::state;
    const auto end =
        std::ranges::find(log, sharded ? "update parameter 0 on compute" : "update parameter 0 1 2 on compute");
    EXPECT_NE(end, log.end());
    Log expected{"scale from 3 sums on compute"};
    if (sharded) {
      expected.insert(expected.end(),
                      {"momentum of 0 on compute", "momentum of 1 on compute", "momentum of 2 on compute",
                       "all-gather of 512 on compute", "all-gather of 1024 on compute"});
    } else {
      expected.push_back("momentum of 0 1 2 on compute");
    }
    expected.insert(expected.end(),
                    {"direction of 20 rows of 40", "direction of 10 rows of 40", "direction of 10 rows of 40",
                     "broadcast by 1 of 300 on compute", "broadcast by 0 of 1000 on compute"});
    EXPECT_EQ(Log(begin, end), expected);
  }
  options.zero = Zero::nothing;
  const Log alone = step(false);
  EXPECT_EQ(std::ranges::count(alone, "direction of 20 rows of 20"), 1) << "a rank alone does all";
  EXPECT_EQ(std::ranges::count_if(alone, [](const std::string& line) { return line.starts_with("broadcast"); }), 0);
}

/// Norms have two sums for each chunk. The ranks add theirs if each updates a shard only.
TEST_F(PathTest, NormsOfParametersAreKnownBeforeTheFirstUpdate) {
  options.optimizer.kind = OptimizerKind::lamb;
  const Log scale{"scale from 3 sums on compute"};
  const Log by_bucket{"squares of scaled update of 0 on compute", "squares of scaled update of 1 on compute",
                      "squares of scaled update of 2 on compute"};
  const Log at_once{"squares of scaled update of 0 1 2 on compute"};
  const auto ratios_in = [](const Log& log) {
    const auto is_update = [](const std::string& line) { return line.starts_with("update parameter 0"); };
    return Log(std::ranges::find(log, "scale from 3 sums on compute"), std::ranges::find_if(log, is_update));
  };
  for (const Zero zero : {Zero::nothing, Zero::state, Zero::gradients, Zero::weights}) {
    SCOPED_TRACE(static_cast<int>(zero));
    options.zero = zero;
    const bool contiguous = zero == Zero::nothing || zero == Zero::weights;
    Log squares = scale;
    std::ranges::copy(contiguous ? at_once : by_bucket, std::back_inserter(squares));
    Log expected = squares;
    if (zero != Zero::nothing) expected.push_back("all-reduce of 6 on compute");
    expected.push_back("3 ratios on compute");
    EXPECT_EQ(ratios_in(step()), expected);
    Log alone = squares;
    alone.push_back("3 ratios on compute");
    if (zero >= Zero::gradients) continue;  // gradients take each other's place
    EXPECT_EQ(ratios_in(step(false)), alone);
  }
  specs[0].split = Split{{600}, 0, 300, 600};
  EXPECT_THROW(step(), Error) << "a slice has no norm of the parameter";
}

/// Weights that are gathered behind their update are updated bucket by bucket.
TEST_F(PathTest, OneLaunchUpdatesAllBucketsOfAnArenaWithoutGathers) {
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::lamb}) {
    for (const float clip_norm : {0.0f, 1.0f}) {
      options.optimizer.kind = kind;
      options.clip_norm = clip_norm;
      const bool waits = clip_norm > 0.0f || kind == OptimizerKind::lamb;
      std::vector<std::ptrdiff_t> launches;
      for (const Zero zero : {Zero::nothing, Zero::state, Zero::gradients, Zero::weights}) {
        options.zero = zero;
        launches.push_back(updates_in(step()));
      }
      EXPECT_EQ(launches, (waits ? std::vector<std::ptrdiff_t>{1, 3, 3, 1} : std::vector<std::ptrdiff_t>{3, 3, 3, 3}));
    }
  }
}

TEST_F(PathTest, WithoutCommunicationNothingIsSentAndAllIsUpdated) {
  for (const Zero zero : {Zero::nothing, Zero::state}) {
    for (const float clip_norm : {0.0f, 1.0f}) {
      for (const std::int64_t virtual_ranks : {0, 8}) {
        options.zero = zero;
        options.clip_norm = clip_norm;
        options.virtual_ranks = virtual_ranks;
        const Log log = step(false);
        const bool at_once = zero == Zero::nothing && clip_norm > 0.0f;
        EXPECT_EQ(updates_in(log), at_once ? 1 : 3);
      }
    }
  }
  options = {};
  options.zero = Zero::state;
  options.overlap = OverlapMode::none;
  step();
  EXPECT_TRUE(communicator.sent.empty());
  EXPECT_EQ(path().reason, "overlap none");
}

/// Five units of one shape, of which three have places.
class ShardedPathTest : public PathTest {
 protected:
  ShardedPathTest() { options.zero = Zero::weights; }

  ParameterArena make_units() {
    std::vector<ParameterSpec> specs;
    std::vector<Unit> units;
    for (std::size_t i = 0; i < 5; ++i) {
      specs.push_back({fmt::format("u{}", i), {500}});
      units.push_back({specs[i].name, i, 1});
    }
    return {specs, arena_options(options, units), device, communicator};
  }
};

TEST_F(ShardedPathTest, GradientsWaitForThoseBeforeInTheirPlace) {
  const ParameterArena arena = make_units();
  Optimizer optimizer = make_optimizer(arena);
  const StepCommunication made = make_step_communication(options, arena, optimizer);
  GradientReducer reducer(arena, *made.gradients, OverlapMode::backward,
                          [&](std::size_t bucket, Stream) { device.log.push_back(fmt::format("reduced {}", bucket)); });
  const auto pass = [&](std::int64_t number, bool last) {
    device.log.clear();
    reducer.begin(number, last);
    for (std::size_t unit = 0; unit < 5; ++unit) {
      reducer.claim(unit);
      device.log.push_back(fmt::format("backward of {}", unit));
      reducer.ready(unit);
    }
    reducer.finish();
    return device.log;
  };
  const Log first = pass(0, false);
  EXPECT_EQ(std::ranges::count(first, "reduce-scatter of 512 on communication"), 4);
  EXPECT_EQ(std::ranges::count(first, "reduce-scatter of 512 on compute"), 1);
  EXPECT_EQ(std::ranges::count(first, "reduced 0"), 0) << "only in the last pass";
  const Log last = pass(1, true);
  const auto third = std::ranges::find(last, "backward of 3");
  ASSERT_NE(third, last.end());
  EXPECT_TRUE((third - 1)->starts_with("compute waits for '"))
      << *(third - 1) << ": the sum of unit 0 has read its place";
  EXPECT_LT(std::ranges::find(last, "reduced 0"), third);
  EXPECT_EQ(std::ranges::count(last, "reduced 4"), 1);
}

TEST_F(ShardedPathTest, WeightsAreGatheredOneUnitAheadAndKeptUntilTheirPlaceIsTaken) {
  const ParameterArena arena = make_units();
  const auto weights = make_sharded_weights(arena, device, communicator);
  const auto gathers = [&](std::size_t unit, std::optional<std::size_t> next) {
    device.log.clear();
    weights->acquire(unit, next);
    return std::ranges::count(device.log, "all-gather of 512 on communication");
  };
  communicator.arrived = 1000;
  EXPECT_EQ(gathers(0, 1), 2);
  EXPECT_EQ(device.log.back(), "compute waits for 'all-gather of 512 on communication'");
  EXPECT_EQ(gathers(1, 2), 1);
  EXPECT_EQ(gathers(2, 3), 1);
  EXPECT_EQ(gathers(3, 4), 1);
  EXPECT_EQ(gathers(4, std::nullopt), 0);
  EXPECT_EQ(gathers(4, 3), 0);
  EXPECT_EQ(gathers(3, 2), 0);
  EXPECT_EQ(gathers(2, 1), 1) << "unit 4 took the place of unit 1";
  weights->changed();
  EXPECT_EQ(gathers(2, std::nullopt), 1);
}

TEST_F(ShardedPathTest, GradientsThatAreNotSentKeepTheirPlace) {
  const ParameterArena arena = make_units();
  Optimizer optimizer = make_optimizer(arena);
  const StepCommunication made = make_step_communication(options, arena, optimizer);
  GradientReducer reducer(arena, *made.gradients, OverlapMode::backward, [](std::size_t, Stream) {});
  reducer.begin(0, true);
  for (std::size_t unit = 0; unit < 3; ++unit) reducer.claim(unit);
  EXPECT_THROW(reducer.claim(3), Error);
  for (std::size_t unit = 0; unit < 5; ++unit) reducer.ready(unit);
  reducer.finish();
}

/// Ranks that reach each other's memory.
class PeerPathTest : public PathTest {
 protected:
  PeerPathTest() { communicator.reaches_peers = true; }
};

TEST_F(PeerPathTest, DirectReductionStartsAfterBackwardAndSendsByUpdates) {
  options.zero = Zero::state;
  const Log log = step();
  EXPECT_EQ(Log(log.begin() + 2, log.end() - 1),
            (Log{"meeting of 4 on compute", "sum of 4 nodes of 128 on compute", "sum of 4 nodes of 256 on compute",
                 "sum of 4 nodes of 128 on compute", "update parameter 0 and of 3 peers on compute",
                 "update parameter 1 and of 3 peers on compute", "update parameter 2 and of 3 peers on compute",
                 "compute waits for communication"}));
  EXPECT_EQ(log.back(), "meeting of 4 on compute");
  EXPECT_TRUE(communicator.sent.empty());
  EXPECT_EQ(path().name, "peers");
  EXPECT_FALSE(overlaps_backward());
  options.zero = Zero::nothing;
  EXPECT_TRUE(overlaps_backward());
}

TEST_F(PeerPathTest, TheNormOfADirectReductionIsOfAllRanks) {
  options.zero = Zero::state;
  options.clip_norm = 1.0f;
  const Log log = step();
  const auto squares = std::ranges::find(log, "squares of 128");
  ASSERT_NE(squares, log.end());
  EXPECT_EQ(Log(squares, squares + 6),
            (Log{"squares of 128", "squares of 256", "squares of 128", "compute waits for communication",
                 "all-reduce of 3 on compute", "scale from 3 sums on compute"}));
}

TEST_F(PeerPathTest, DirectReductionNeedsReachAndTheFlag) {
  options.zero = Zero::state;
  EXPECT_TRUE(make_arena().reaches_peers());
  options.fused_sum = false;
  EXPECT_FALSE(make_arena().reaches_peers());
  options.fused_sum = true;
  communicator.reaches_peers = false;
  EXPECT_FALSE(make_arena().reaches_peers());
}

class FusedPathTest : public PeerPathTest {
 protected:
  FusedPathTest() { device.inbox = 64; }
};

TEST_F(FusedPathTest, OneKernelReducesAndUpdatesTheLastBucket) {
  const Log log = step();
  EXPECT_EQ(Log(log.end() - 3, log.end()),
            (Log{"update parameter 1 on communication, yields", "sum over 4 and update parameter 2 on compute",
                 "compute waits for communication"}));
  EXPECT_EQ(communicator.sent.size(), 2u);
}

TEST_F(FusedPathTest, TheLastBucketIsReducedForTheNormOnly) {
  const ParameterArena arena = make_arena();
  Optimizer optimizer = make_optimizer(arena);
  const StepCommunication made = make_step_communication(options, arena, optimizer);
  device.log.clear();
  made.gradients->complete_sums();
  EXPECT_EQ(device.log, (Log{"all-reduce of 512 on compute"}));
}

TEST_F(FusedPathTest, NeedsPeersInReachAndNothingInBetween) {
  const auto fuses = [this](auto change) {
    const TrainerOptions before = options;
    change(options);
    const Log log = step();
    options = before;
    return std::ranges::any_of(log, [](const std::string& line) { return line.starts_with("sum over"); });
  };
  EXPECT_TRUE(fuses([](TrainerOptions&) {}));
  EXPECT_FALSE(fuses([](TrainerOptions& o) { o.clip_norm = 1.0f; }));
  EXPECT_FALSE(fuses([](TrainerOptions& o) { o.zero = Zero::state; }));
  EXPECT_FALSE(fuses([](TrainerOptions& o) { o.fused_sum = false; }));
  EXPECT_FALSE(fuses([](TrainerOptions& o) { o.on_nonfinite = OnNonFinite::skip; }));
  EXPECT_FALSE(fuses([](TrainerOptions& o) { o.virtual_ranks = 8; }));
  communicator.reaches_peers = false;
  EXPECT_FALSE(fuses([](TrainerOptions&) {}));
  communicator.reaches_peers = true;
  device.inbox = 0;
  EXPECT_FALSE(fuses([](TrainerOptions&) {}));
}

/// Two virtual ranks for each of the four; the gradients of the first of the two have been kept.
class TreePathTest : public PathTest {
 protected:
  TreePathTest() { options.virtual_ranks = 8; }
};

TEST_F(TreePathTest, ExchangesAddsAndGathersEveryBucket) {
  const Log log = step();
  EXPECT_EQ(Log(log.begin(), log.begin() + 6),
            (Log{"communication waits for compute", "sum of 2 nodes of 512 on communication",
                 "all-to-all of 512 on communication", "tree of 4 leaves of 128 on communication",
                 "all-gather of 512 on communication", "update parameter 0 on communication"}));
  EXPECT_EQ(path().name, "tree");
}

TEST_F(TreePathTest, AShardNeedsNoGatheringOfGradients) {
  options.zero = Zero::state;
  const Log log = step();
  const auto tree = std::ranges::find_if(log, [](const std::string& line) { return line.starts_with("tree of 4"); });
  ASSERT_NE(tree, log.end());
  EXPECT_TRUE((tree + 1)->starts_with("update parameter 0")) << *(tree + 1);
}

/// Nothing promises an order in which an all-reduce or a reduce-scatter adds. The norm is one of terms of one rank
/// each.
TEST_F(TreePathTest, CommunicatorsAddNoGradientsInAnyStage) {
  for (const Zero zero : {Zero::nothing, Zero::state, Zero::gradients, Zero::weights}) {
    for (const float clip_norm : {0.0f, 1.0f}) {
      options.zero = zero;
      options.clip_norm = clip_norm;
      for (const std::string& line : step()) {
        const bool adds = line.starts_with("all-reduce") || line.starts_with("reduce-scatter");
        EXPECT_TRUE(!adds || line == "all-reduce of 3 on compute") << static_cast<int>(zero) << ": " << line;
      }
    }
  }
}

TEST_F(TreePathTest, TwoNumbersHaveOneOrder) {
  FakeCommunicator two(device, 2);
  for (const std::int64_t virtual_ranks : {2, 8}) {  // sums of FP32 gradients are FP32
    options.virtual_ranks = virtual_ranks;
    const ParameterArena arena({{"a", {300}}}, arena_options(options, {{"all", 0, 1}}), device, two);
    Optimizer optimizer = make_optimizer(arena);
    const StepCommunication made = make_step_communication(options, arena, optimizer);
    device.log.clear();
    made.gradients->start(0, device.compute_stream(), [](std::size_t, Stream) {});
    EXPECT_TRUE(device.log.back().starts_with("all-reduce")) << virtual_ranks;
    EXPECT_EQ(made.tree_bytes() > 0, virtual_ranks == 8) << "the sums of this rank's virtual ranks";
  }
}

TEST_F(TreePathTest, RefusesWhatIsNoBinaryTree) {
  const ParameterArena arena = make_arena();
  EXPECT_THROW(VirtualRankSums(arena, 3, false), Error);
  FakeCommunicator three(device, 3);
  const ParameterArena of_three({{"a", {300}}}, {1, 0}, device, three);
  VirtualRankSums below(of_three, 1, false);
  EXPECT_THROW(make_tree_exchange(of_three, below), Error);
}

/// Sums of bf16 gradients are sent as f32 from memory of their own, and are gradients where nothing is sent.
TEST(VirtualRankMemory, OnlyWhatIsSentLiesApartFromTheGradients) {
  FakeDevice device(false, Precision::bf16);
  FakeCommunicator communicator(device, 4);
  TrainerOptions options;
  options.virtual_ranks = 8;
  const ParameterArena arena({{"a", {512}}}, {1, 0}, device, communicator);
  Optimizer optimizer(options.optimizer, 0.0f, arena);
  const StepCommunication made = make_step_communication(options, arena, optimizer);
  const auto place_of_sum = [&](GradientSync& sync, OverlapMode mode) {
    device.sums.clear();
    const auto ignore = [](std::size_t, Stream) {};
    GradientReducer reducer(arena, sync, mode, ignore, made.virtual_ranks.get());
    reducer.begin(0, true);
    reducer.ready(0);
    reducer.finish();
    return device.sums.at(0);
  };
  const void* gradients = arena.bucket_gradients(0).data;
  EXPECT_NE(place_of_sum(*made.gradients, OverlapMode::backward), gradients);
  EXPECT_EQ(place_of_sum(*make_no_sync(), OverlapMode::none), gradients);
  options.overlap = OverlapMode::none;
  EXPECT_EQ(make_step_communication(options, arena, optimizer).tree_bytes(), 512 * 2u) << "a run that sends nothing";
}

/// bf16 gradients: 2 bytes; sums: 4.
TEST(VirtualRankMemory, HasALevelOfSumsForEachLevelOfTheTree) {
  FakeDevice device(false, Precision::bf16);
  for (const auto& [ranks, count, bytes] : {std::tuple{1, 1, 0},
                                            {1, 2, 2},
                                            {1, 4, 2 + 4},
                                            {1, 8, 2 + 4 + 4},
                                            {2, 1, 0},
                                            {2, 2, 2 + 4 + 4},
                                            {2, 4, 2 + 4 + 4},
                                            {4, 1, 2}}) {
    FakeCommunicator communicator(device, ranks);
    TrainerOptions options;
    options.virtual_ranks = ranks * count;
    const ParameterArena arena({{"a", {512}}}, {1, 0}, device, communicator);
    Optimizer optimizer(options.optimizer, 0.0f, arena);
    EXPECT_EQ(make_step_communication(options, arena, optimizer).tree_bytes(), static_cast<std::size_t>(512 * bytes))
        << ranks << " ranks of " << count;
  }
}

}  // namespace
}  // namespace ddptrain
