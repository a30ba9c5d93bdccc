#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "data/images/images.h"
#include "data/text/tokens.h"
#include "models/gpt/gpt.h"
#include "runtime/core/error.h"
#include "tests/support/says.h"
#include "tests/train/model_around.h"
#include "tests/train/rig.h"

namespace ddptrain {
namespace {

constexpr int kSteps = 5;

const ImageData& images() {
  static const ImageData data = make_synthetic(400, 7);
  return data;
}

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
    return make_cnn(device, {options.batch, options.seed, true}, make_resident(images(), device));
  };
  const auto gpt = [](Device& device, const TrainerOptions& options) {
    GptOptions shape;
    shape.shape = {2, 32, 2, 64, 16, 61};
    shape.max_batch = options.batch;
    shape.seed = options.seed;
    shape.dropout = 0.1f;
    return make_gpt(device, shape, make_resident(text(), device));
  };
  return {{"cnn", images(), cnn}, {"gpt", text(), gpt}};
}

/// What training ends with: parameters, and the bits of losses.
struct End {
  std::string hash;
  MetricSums training, test;
  bool operator==(const End& other) const {
    return hash == other.hash && training.loss == other.training.loss && training.correct == other.training.correct &&
           test.loss == other.test.loss && test.correct == other.test.correct && test.samples == other.test.samples;
  }
};

std::ostream& operator<<(std::ostream& out, const End& end) {
  return out << fmt::format("{}, loss {:.17g} and {:.17g}, {} and {} right", end.hash, end.training.loss, end.test.loss,
                            end.training.correct, end.test.correct);
}

struct Ranks {
  const World& world;
  Device& device;
  Communicator& communicator;

  std::unique_ptr<Trainer> trainer(const TrainerOptions& options, const Network& network) const {
    return std::make_unique<Trainer>(options, network.make(device, options), network.data, world, device, communicator);
  }
  End train(const TrainerOptions& options, const Network& network) const {
    const auto run = trainer(options, network);
    run->run(kSteps);
    const MetricSums training = run->metrics().take_training();
    return {run->state().parameter_hash(), training, run->evaluate(37)};
  }
};

/// A network with a buffer: a number of training samples, which raises the gradient. Counts in host memory (CPU).
class Counting final : public tests::ModelAround {
 public:
  using ModelAround::ModelAround;

  std::vector<BufferSpec> buffers() const override { return {{"seen", {1}, DType::f32, 1.0f}}; }
  void bind(const ModelTensors& tensors) override {
    ModelAround::bind(tensors);
    seen_ = tensors.buffers.at(0);
  }
  void begin(const MicroBatch& batch) override {
    MicroBatch raised = batch;
    if (batch.training) seen_.as<float>()[0] += static_cast<float>(batch.slice.order.first % 7);
    raised.gradient_scale *= seen_.as<float>()[0];
    if (!batch.training) batch.sums->loss += seen_.as<float>()[0];
    ModelAround::begin(raised);
  }

 private:
  Tensor seen_;
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

  /// On all ranks, with `options`, and on one with `reference`.
  void expect_same(const TrainerOptions& options, const TrainerOptions& reference) const {
    for (const Network& network : networks()) {
      EXPECT_EQ(all().train(options, network), one().train(reference, network)) << network.name;
    }
  }

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
  for (const std::int64_t virtual_ranks : {4, 8}) {
    for (const OptimizerKind kind : {OptimizerKind::sgd, OptimizerKind::adamw}) {
      for (const float clip_norm : {0.0f, 0.05f}) {
        SCOPED_TRACE(fmt::format("{} of {} virtual ranks, clip {}", rule_of(kind).name, virtual_ranks, clip_norm));
        TrainerOptions run = options(virtual_ranks);
        run.optimizer.kind = kind;
        run.clip_norm = clip_norm;
        expect_same(run, run);
      }
    }
  }
}

TEST_P(VirtualRanksTest, BucketsShardsOverlapAndGraphChangeNoBit) {
  TrainerOptions reference = options(4);
  reference.clip_norm = 0.05f;
  reference.bucket_bytes = std::size_t{1} << 30;
  reference.graph = false;
  TrainerOptions run = reference;
  run.bucket_bytes = 1;
  run.graph = true;
  for (const Zero zero : kZeroStages) {
    for (const OverlapMode overlap : {OverlapMode::on, OverlapMode::off}) {
      if (zero >= Zero::gradients && overlap == OverlapMode::off) continue;  // refused
      SCOPED_TRACE(fmt::format("zero {}, overlap {}", static_cast<int>(zero), overlap == OverlapMode::on));
      run.zero = zero;
      run.overlap = overlap;
      run.grad_accum = reference.grad_accum = zero < Zero::gradients ? 2 : 1;
      expect_same(run, reference);
    }
  }
}

TEST_P(VirtualRanksTest, EveryOptimizerEndsWithTheBitsOfOneRank) {
  for (std::size_t kind = 0; kind < kOptimizerRules.size(); ++kind) {
    SCOPED_TRACE(kOptimizerRules[kind].name);
    TrainerOptions run = options(4);
    run.optimizer.kind = static_cast<OptimizerKind>(kind);
    run.optimizer.stochastic_rounding = GetParam().precision == Precision::bf16;
    expect_same(run, run);
  }
}

/// As many as there are ranks: at two, the sum needs no tree; the last bucket may be summed by the kernel that updates.
TEST_P(VirtualRanksTest, AsManyAsRanksGiveTheBitsOfOneRank) {
  for (const bool fused_sum : {false, true}) {
    TrainerOptions run = options(test_world().size());
    run.fused_sum = fused_sum;
    const bool tree = test_world().size() > 2;
    EXPECT_EQ(all().trainer(run, networks().front())->gradient_path().name == "tree", tree);
    expect_same(run, run);
  }
}

TEST_P(VirtualRanksTest, HaveTheirOwnBuffers) {
  if (GetParam().device != DeviceKind::cpu) GTEST_SKIP() << "counts in host memory";
  const Network network = networks().front();
  const Network counting{"counting", network.data, [&](Device& device, const TrainerOptions& options) {
                           return std::make_unique<Counting>(network.make(device, options));
                         }};
  TrainerOptions run = options(8);
  run.grad_accum = 2;
  EXPECT_EQ(all().train(run, counting), one().train(run, counting));

  const auto trainer = all().trainer(run, counting);
  trainer->run(1);
  const StateArray seen = trainer->state().arrays().back();
  EXPECT_EQ(seen.shape(), (Shape{8, 1}));
  EXPECT_EQ(seen.placement, Placement::sharded);
  ASSERT_EQ(seen.pieces.size(), 1u);
  const std::int64_t count = 8 / test_world().size();
  EXPECT_EQ(seen.pieces[0].begin, test_world().rank() * count);
  ASSERT_EQ(seen.pieces[0].values.size(), count);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t part = test_world().rank() * count + i;
    EXPECT_EQ(seen.pieces[0].values.as<float>()[i], static_cast<float>(1 + 3 * part % 7 + 3 * (8 + part) % 7)) << part;
  }
}

/// That the cases above can fail: what they train depends on the order in which gradients are added.
TEST_P(VirtualRanksTest, DifferFromRanksThatAccumulate) {
  const Network network = networks().front();
  TrainerOptions accumulating = options(0);
  accumulating.grad_accum = 8;
  EXPECT_NE(one().train(options(8), network).hash, one().train(accumulating, network).hash);
}

/// Sums of FP32 losses in double precision are too exact to show their order.
TEST(VirtualRanks, AddLossesInTheirOwnOrder) {
  if ((test_world().size() & (test_world().size() - 1)) != 0) GTEST_SKIP() << "ranks do not divide a power of two";
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
