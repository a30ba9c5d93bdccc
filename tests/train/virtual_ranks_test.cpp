#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "data/images/images.h"
#include "data/text/tokens.h"
#include "models/decoder/decoder.h"
#include "models/gpt2/gpt2.h"
#include "models/llama/llama.h"
#include "runtime/core/error.h"
#include "runtime/train/measure/trace.h"
#include "tests/train/model_around.h"
#include "tests/train/rig.h"

namespace ddptrain {
namespace {

constexpr int kSteps = 5;

const TokenDataset& text() {
  static const TokenDataset data(load_tokens("synthetic:4000:61", {}), 16);
  return data;
}

struct Network {
  std::string name;
  const Dataset& data;
  std::function<std::unique_ptr<Model>(Device&, const TrainerOptions&)> make;
};

std::vector<Network> networks() {
  const auto cnn = [](Device& device, const TrainerOptions& options) {
    return make_cnn(device, {options.batch, options.seed, true}, make_resident(some_images(), device));
  };
  const auto decoder = [](const DecoderTable& table) {
    return [table](Device& device, const TrainerOptions& options) {
      DecoderOptions shape;
      shape.table = table;
      shape.max_batch = options.batch;
      shape.seed = options.seed;
      shape.dropout = 0.1f;
      return make_decoder(device, shape, make_resident(text(), device));
    };
  };
  LlamaShape llama = {.layers = 2, .width = 32, .heads = 4, .key_heads = 2, .feed_forward = 48};
  llama.sequence = 16;
  llama.vocabulary = 61;
  llama.qkv_bias = true;
  llama.tied_head = false;
  return {{"cnn", some_images(), cnn},
          {"gpt", text(), decoder(gpt2_table({2, 32, 2, 64, 16, 61}))},
          {"llama", text(), decoder(llama_table(llama))}};
}

struct Ranks {
  const World& world;
  Device& device;
  Communicator& communicator;

  std::unique_ptr<Trainer> trainer(const TrainerOptions& options, const Network& network) const {
    return std::make_unique<Trainer>(options, network.make(device, options), network.data, world, device, communicator);
  }
  /// Returns what training ends with: the hash of the parameters, and the bits of losses.
  std::string train(const TrainerOptions& options, const Network& network) const {
    const auto run = trainer(options, network);
    run->run(kSteps);
    const MetricSums training = run->metrics().take_training(), test = run->evaluate(37);
    return fmt::format("{}, loss {:.17g} and {:.17g}, {} and {} right of {}", run->state().parameter_hash(),
                       training.loss, test.loss, training.correct, test.correct, test.samples);
  }
};

struct Case {
  DeviceKind device;
  Precision precision;
  bool fp8 = false;
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  return fmt::format("{}_{}", info.param.device == DeviceKind::cpu ? "cpu" : "cuda",
                     info.param.fp8 ? "fp8" : ddptrain::name_of(info.param.precision));
}

class VirtualRanksTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const int size = test_world().size();
    if ((size & (size - 1)) != 0) GTEST_SKIP() << size << " ranks do not divide a power of two";
    if (!enough_devices(GetParam().device)) GTEST_SKIP() << "needs a GPU for each of " << size << " ranks";
    rig_ = std::make_unique<Rig>(GetParam().device, GetParam().precision, true, GetParam().fp8);
    alone_ = test_world().split(test_world().rank());
    self_ = make_self_communicator(*rig_->device);
  }

  static TrainerOptions options(std::int64_t virtual_ranks) {
    TrainerOptions options;
    options.batch = 3;
    options.virtual_ranks = virtual_ranks;
    options.seed = 3;
    options.optimizer.kind = OptimizerKind::adamw;
    options.optimizer.weight_decay = 0.01f;
    options.bucket_bytes = 20000;
    options.last_bucket_bytes = 5000;
    return options;
  }

  Ranks all() const { return {test_world(), *rig_->device, *rig_->communicator}; }
  Ranks one() const { return {*alone_, *rig_->device, *self_}; }

  /// What one rank ends with, by the name of the network.
  using Results = std::map<std::string, std::string>;

  Results results_of_one(const TrainerOptions& options) const {
    Results results;
    for (const Network& network : networks()) results[network.name] = one().train(options, network);
    return results;
  }
  void expect(const TrainerOptions& options, const Results& expected) const {
    for (const Network& network : networks()) {
      EXPECT_EQ(all().train(options, network), expected.at(network.name)) << network.name;
    }
  }
  /// On all ranks, and on one.
  void expect_same(const TrainerOptions& options) const { expect(options, results_of_one(options)); }
  /// One rank is no other number of ranks.
  static bool compares_with_itself() { return test_world().size() == 1; }

  std::unique_ptr<Rig> rig_;
  std::unique_ptr<World> alone_;
  std::unique_ptr<Communicator> self_;
};

INSTANTIATE_TEST_SUITE_P(Devices, VirtualRanksTest,
                         testing::Values(Case{DeviceKind::cpu, Precision::fp32},
                                         Case{DeviceKind::cuda, Precision::fp32},
                                         Case{DeviceKind::cuda, Precision::bf16},
                                         Case{DeviceKind::cuda, Precision::bf16, true}),
                         name_of);

TEST_P(VirtualRanksTest, GiveTheBitsOfOneRankOnAnyNumber) {
  if (compares_with_itself()) GTEST_SKIP() << "needs several ranks";
  for (const float clip_norm : {0.0f, 0.05f}) {
    TrainerOptions run = options(8);
    run.clip_norm = clip_norm;
    expect_same(run);
  }
}

TEST_P(VirtualRanksTest, BucketsShardsOverlapAndGraphChangeNoBit) {
  TrainerOptions reference = options(4);
  reference.clip_norm = 0.05f;
  reference.bucket_bytes = std::size_t{1} << 30;
  reference.graph = false;
  const Results of_one_micro_step = results_of_one(reference);
  reference.grad_accum = 2;
  const Results of_two = results_of_one(reference);
  TrainerOptions run = reference;
  run.bucket_bytes = 1;
  run.graph = true;
  for (const Zero zero : kZeroStages) {
    for (const OverlapMode overlap : {OverlapMode::on, OverlapMode::off}) {
      if (zero >= Zero::gradients && overlap == OverlapMode::off) continue;  // refused
      SCOPED_TRACE(fmt::format("zero {}, overlap {}", static_cast<int>(zero), overlap == OverlapMode::on));
      run.zero = zero;
      run.overlap = overlap;
      run.grad_accum = zero < Zero::gradients ? 2 : 1;
      expect(run, run.grad_accum == 2 ? of_two : of_one_micro_step);
    }
  }
}

TEST_P(VirtualRanksTest, EveryOptimizerEndsWithTheBitsOfOneRank) {
  if (compares_with_itself()) GTEST_SKIP() << "needs several ranks";
  for (std::size_t kind = 0; kind < kOptimizerRules.size(); ++kind) {
    SCOPED_TRACE(kOptimizerRules[kind].name);
    TrainerOptions run = options(4);
    run.optimizer.kind = static_cast<OptimizerKind>(kind);
    expect_same(run);
  }
}

/// Neither do random bits depend on ranks, buckets or shards.
TEST_P(VirtualRanksTest, RoundingAtRandomIsTheSameOnAnyNumber) {
  TrainerOptions reference = options(4);
  reference.bf16_moments = true;
  reference.has_masters = GetParam().device == DeviceKind::cuda && GetParam().precision != Precision::bf16;
  reference.bucket_bytes = std::size_t{1} << 30;
  const Results expected = results_of_one(reference);
  reference.clip_norm = 0.05f;
  const Results expected_clipped = results_of_one(reference);
  TrainerOptions run = reference;
  run.bucket_bytes = 20000;
  for (const Zero zero : kZeroStages) {
    SCOPED_TRACE(fmt::format("zero {}", static_cast<int>(zero)));
    run.zero = zero;
    run.clip_norm = zero == Zero::state ? 0.05f : 0.0f;
    expect(run, zero == Zero::state ? expected_clipped : expected);
  }
}

/// Neither do norms of whole parameters depend on who updates which part of them.
TEST_P(VirtualRanksTest, NormsOfParametersAreThoseOfOneRankOnAnyShards) {
  if (compares_with_itself()) GTEST_SKIP() << "needs several ranks";
  TrainerOptions reference = options(4);
  reference.optimizer.kind = OptimizerKind::lamb;
  reference.bucket_bytes = std::size_t{1} << 30;
  for (const bool narrow : {false, true}) {
    reference.bf16_moments = narrow;
    reference.clip_norm = narrow ? 0.05f : 0.0f;
    const Results expected = results_of_one(reference);
    TrainerOptions run = reference;
    run.bucket_bytes = 20000;
    for (const Zero zero : narrow ? std::vector{Zero::gradients} : std::vector{Zero::state, Zero::weights}) {
      SCOPED_TRACE(fmt::format("zero {}", static_cast<int>(zero)));
      run.zero = zero;
      expect(run, expected);
    }
  }
  reference.zero = Zero::state;
  const auto traced = all().trainer(reference, networks().front());
  traced->run(1);
  std::set<std::string> parts;
  for (const TimelineSpan& span : trace_steps(*traced, 1)) parts.insert(span.name);
  for (const char* part : {"norms of parameters", "sums of norms"}) EXPECT_TRUE(parts.contains(part)) << part;
}

/// Neither do updates of whole matrices depend on who works on them.
TEST_P(VirtualRanksTest, MatricesMoveAlikeWhoeverWorksOnThem) {
  if (compares_with_itself()) GTEST_SKIP() << "needs several ranks";
  TrainerOptions reference = options(4);
  reference.optimizer.kind = OptimizerKind::muon;
  reference.bucket_bytes = std::size_t{1} << 30;
  for (const Zero zero : {Zero::nothing, Zero::state}) {
    SCOPED_TRACE(fmt::format("zero {}", static_cast<int>(zero)));
    reference.bf16_moments = zero == Zero::state;
    TrainerOptions run = reference;
    run.bucket_bytes = 20000;
    run.zero = zero;
    expect(run, results_of_one(reference));
  }
  const auto traced = all().trainer(reference, networks().front());
  traced->run(1);
  std::set<std::string> parts;
  for (const TimelineSpan& span : trace_steps(*traced, 1)) parts.insert(span.name);
  for (const char* part : {"momentum", "directions", "broadcast of directions"})
    EXPECT_TRUE(parts.contains(part)) << part;
}

/// As many as there are ranks: at two, the sum needs no tree; the last bucket may be summed by the kernel that updates.
TEST_P(VirtualRanksTest, AsManyAsRanksGiveTheBitsOfOneRank) {
  if (compares_with_itself()) GTEST_SKIP() << "needs several ranks";
  for (const bool fused_sum : {false, true}) {
    TrainerOptions run = options(test_world().size());
    run.fused_sum = fused_sum;
    const bool tree = test_world().size() > 2;
    EXPECT_EQ(all().trainer(run, networks().front())->gradient_path().name == "tree", tree);
    expect_same(run);
  }
}

TEST_P(VirtualRanksTest, HaveTheirOwnBuffers) {
  if (GetParam().device != DeviceKind::cpu) GTEST_SKIP() << "counts in host memory";
  const Network network = networks().front();
  const Network counting{"counting", network.data, [&](Device& device, const TrainerOptions& options) {
                           return std::make_unique<tests::Counting>(network.make(device, options));
                         }};
  TrainerOptions run = options(8);
  run.grad_accum = 2;
  EXPECT_EQ(all().train(run, counting), one().train(run, counting));

  const auto trainer = all().trainer(run, counting);
  trainer->run(1);
  const StateArray seen = trainer->state().arrays().back();
  EXPECT_EQ(seen.shape(), (Shape{8, 3}));
  EXPECT_EQ(seen.placement, Placement::sharded);
  ASSERT_EQ(seen.pieces.size(), 1u);
  const std::int64_t count = 8 / test_world().size();
  EXPECT_EQ(seen.pieces[0].begin, test_world().rank() * count * 3);
  ASSERT_EQ(seen.pieces[0].values.size(), count * 3);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t part = test_world().rank() * count + i;
    const auto* values = seen.pieces[0].values.as<float>() + 3 * i;
    EXPECT_EQ(values[0], 0.5f) << "as it starts";
    EXPECT_EQ(values[1], 2.5f + static_cast<float>(3 * part % 7 + 3 * (8 + part) % 7)) << part;
  }
}

/// That the cases above can fail: what they train depends on the order in which gradients are added.
TEST_P(VirtualRanksTest, DifferFromRanksThatAccumulate) {
  const Network network = networks().front();
  TrainerOptions accumulating = options(0);
  accumulating.grad_accum = 8;
  const auto hash_of = [&](const TrainerOptions& options) { return one().train(options, network).substr(0, 32); };
  EXPECT_NE(hash_of(options(8)), hash_of(accumulating));
}

/// Sums of FP32 losses in double precision are too exact to show their order.
TEST(VirtualRanks, AddLossesInTheirOwnOrder) {
  const int size = test_world().size();
  if (size == 1 || (size & (size - 1)) != 0) GTEST_SKIP() << "needs two ranks, or four";
  Rig rig(DeviceKind::cpu, Precision::fp64);
  const auto alone = test_world().split(test_world().rank());
  const auto self = make_self_communicator(*rig.device);
  TrainerOptions options;
  options.batch = 3;
  options.virtual_ranks = 8;
  const Network network = networks().front();
  const Ranks all{test_world(), *rig.device, *rig.communicator};
  const Ranks one{*alone, *rig.device, *self};
  EXPECT_EQ(all.train(options, network), one.train(options, network));
}

TEST(VirtualRanks, AreNeighboursOnARank) {
  TrainerOptions options;
  EXPECT_EQ(virtual_ranks(options, 2, 3).all, 3);
  EXPECT_EQ(virtual_ranks(options, 2, 3).first, 2);
  EXPECT_EQ(virtual_ranks(options, 2, 3).count, 1);
  options.virtual_ranks = 8;
  EXPECT_EQ(virtual_ranks(options, 3, 4).all, 8);
  EXPECT_EQ(virtual_ranks(options, 3, 4).first, 6);
  EXPECT_EQ(virtual_ranks(options, 3, 4).count, 2);
}

TEST(VirtualRanks, ArePowersOfTwoThatTheRanksDivide) {
  TrainerOptions options;
  for (const std::int64_t wrong : {3, 6, 12}) {
    options.virtual_ranks = wrong;
    EXPECT_THROW(virtual_ranks(options, 0, 1), UsageError) << wrong;
  }
  options.virtual_ranks = 4;
  EXPECT_THROW(virtual_ranks(options, 0, 3), UsageError);
  EXPECT_THROW(virtual_ranks(options, 0, 8), UsageError);
}

}  // namespace
}  // namespace ddptrain
