// What the optimizer rounds to bf16 at random, against the definition and its statistics.

#include <bit>
#include <cstring>

#include "runtime/core/bf16.h"
#include "runtime/ops/optimizers/optimizer.h"
#include "tests/ops/bench.h"
#include "tests/ops/optimizer_case.h"

namespace ddptrain::tests {
namespace {

constexpr std::uint64_t kSeed = 12;
constexpr std::uint32_t kIdentity = 0x9c6c8a5c;
constexpr std::uint32_t kCount = 5 * kChunkElements + 37;
/// 2^-10: a quarter of the distance from 1 to the bf16 number below.
constexpr double kQuarter = 1.0 / 1024.0;
constexpr double kBelowOne = 1.0 - 4.0 * kQuarter;

/// Of a share of kCount values: five standard deviations.
double five_deviations(double share) { return 5.0 * std::sqrt(share * (1.0 - share) / kCount); }

double share_of(const std::vector<bool>& values) {
  return static_cast<double>(std::count(values.begin(), values.end(), true)) / static_cast<double>(values.size());
}

std::vector<bool> both(std::vector<bool> a, const std::vector<bool>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = a[i] && b[i];
  return a;
}

TEST(RoundingAtRandom, HasTheValueAsMeanAndGivesItsNeighboursOnly) {
  for (const float value : {1.0f + 1.0f / 512, -3.14159f, 1e-3f, 2e-38f, -2.7e38f}) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const float inner = std::bit_cast<float>(bits & 0xFFFF0000u);
    const float outer = std::bit_cast<float>((bits & 0xFFFF0000u) + 0x10000u);
    double sum = 0.0;
    for (std::uint32_t random = 0; random < 65536; ++random) {
      const float rounded = round_at_random(value, random);
      ASSERT_TRUE(rounded == inner || rounded == outer) << value << ": " << rounded;
      sum += static_cast<double>(rounded);
    }
    EXPECT_NEAR(sum / 65536.0 / static_cast<double>(value), 1.0, 1e-9) << "over all random bits";
  }
}

TEST(RoundingAtRandom, LeavesWhatNeedsNoRounding) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {0.0f, -0.0f, 1.0f, -0.5f, 3.0e38f, infinity, -infinity}) {
    const float exact = to_float(to_bf16(value));
    for (const std::uint32_t random : {0u, 1u, 32768u, 65535u}) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(round_at_random(exact, random)), std::bit_cast<std::uint32_t>(exact));
    }
  }
  for (const std::uint32_t nan : {0x7FFFFFFFu, 0xFFFFFFFFu, 0x7F800001u}) {
    EXPECT_TRUE(std::isnan(round_at_random(std::bit_cast<float>(nan), 65535))) << std::hex << nan;
  }
}

/// Parameters of less than 2^32 elements have random bits by the index in the whole parameter.
TEST(RoundingAtRandom, ASliceKnowsItsElements) {
  const RoundedParameter columns{kIdentity, 16, 48, 64};  // the last 16 columns of 64
  EXPECT_EQ(columns.element(0), 48u);
  EXPECT_EQ(columns.element(15), 63u);
  EXPECT_EQ(columns.element(16), 112u);
  EXPECT_EQ(columns.element(16 * 7 + 3), 64u * 7 + 48 + 3);
  EXPECT_EQ(RoundedParameter{kIdentity}.element(77), 77u);
}

std::vector<OptimizerCase> rounding_cases() {
  const auto named = [](const char* name, DeviceKind kind, Precision precision) {
    return DeviceCase{name, kind, precision};
  };
  return {{named("cpu_fp32", DeviceKind::cpu, Precision::fp32), DType::f32, DType::f32},
          {named("cpu_fp64", DeviceKind::cpu, Precision::fp64), DType::f64, DType::f64},
          {named("cpu_bf16", DeviceKind::cpu, Precision::fp32), DType::bf16, DType::bf16},
          {named("cuda_bf16", DeviceKind::cuda, Precision::bf16), DType::bf16, DType::bf16},
          {named("cuda_bf16_f32_gradients", DeviceKind::cuda, Precision::bf16), DType::bf16, DType::f32},
          {named("cuda_fp32", DeviceKind::cuda, Precision::fp32), DType::f32, DType::f32}};
}

/// One parameter whose weights and moments are 1.
class RoundingTest : public ::testing::TestWithParam<OptimizerCase> {
 protected:
  void SetUp() override {
    const DeviceCase& device = GetParam().device;
    if (device.kind == DeviceKind::cuda && cuda_device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    device_ = make_device(device, 2);
    bench_ = std::make_unique<Bench>(*device_, GetParam().weights);
    start();
  }

  /// f32 weights on GPUs are master weights.
  bool can_be_masterless() const {
    return GetParam().device.kind == DeviceKind::cpu || GetParam().weights == DType::bf16;
  }

  void start() {
    const Values ones(kCount, 1.0);
    master_ = bench_->put_master(ones, {kCount});
    weights_ = bench_->put_as(ones, GetParam().weights, {kCount});
    moments_ = {bench_->put_as(ones, DType::bf16, {kCount}), bench_->put_as(ones, DType::bf16, {kCount})};
    gradients_ = bench_->put_as(Values(kCount, 0.0), GetParam().gradients, {kCount});
    parameter_ = {kIdentity};
  }

  UpdateSlice slice(bool masterless) {
    std::vector<UpdateChunk> chunks;
    for (std::uint32_t at = 0; at < kCount; at += kChunkElements) {
      const auto count = static_cast<std::uint16_t>(std::min(kChunkElements, kCount - at));
      chunks.push_back({.position = at / kChunkAlignment, .element = at, .parameter = 0, .count = count, .decays = 0});
    }
    std::vector<std::uint8_t> bytes(chunks.size() * sizeof(UpdateChunk));
    std::memcpy(bytes.data(), chunks.data(), bytes.size());
    UpdateSlice slice;
    slice.chunks = bench_->put_bytes(bytes, {static_cast<std::int64_t>(bytes.size())}).as<UpdateChunk>();
    slice.chunk_count = static_cast<std::uint32_t>(chunks.size());
    slice.weight_type = GetParam().weights;
    slice.gradient_type = GetParam().gradients;
    slice.state_type = DType::bf16;
    slice.masterless = masterless;
    slice.parameters = bench_->put_object(parameter_);
    const bool same = masterless || weights_.dtype == master_.dtype;
    slice.weights = same && !masterless ? master_.data : weights_.data;
    slice.master = masterless ? weights_.data : master_.data;
    slice.state = {moments_[0].data, moments_[1].data};
    slice.gradients = gradients_.data;
    return slice;
  }

  /// Weights and moments become 1 - 2^-10 before they are rounded (weights: 1 - 2^-10 + 2^-20).
  OptimizerSettings quarter_steps(OptimizerKind kind, std::uint64_t seed = kSeed) const {
    OptimizerSettings settings;
    settings.kind = kind;
    settings.schedule.peak = static_cast<float>(kQuarter);
    settings.momentum = settings.beta1 = settings.beta2 = static_cast<float>(1.0 - kQuarter);
    settings.rounding_seed = seed;
    return settings;
  }

  void update(const OptimizerSettings& settings, const UpdateSlice& slice, std::uint64_t step) {
    StepState* state = bench_->put_object(StepState{step});
    device_->get<OptimizerOps>().update(settings, slice, {state, 0}, device_->compute_stream());
  }

  /// Where values of 1 or of the number below are that number; no others may be there.
  std::vector<bool> below(const Tensor& tensor) {
    std::vector<bool> result;
    for (const double value : bench_->take(tensor)) {
      EXPECT_TRUE(value == 1.0 || value == kBelowOne) << value;
      result.push_back(value != 1.0);
    }
    return result;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Bench> bench_;
  Tensor master_, weights_, gradients_;
  std::array<Tensor, 2> moments_;
  RoundedParameter parameter_;
};

INSTANTIATE_TEST_SUITE_P(Devices, RoundingTest, ::testing::ValuesIn(rounding_cases()),
                         [](const auto& param) { return param.param.device.name; });

TEST_P(RoundingTest, KeepsMeansAndDrawsEveryValueForItself) {
  update(quarter_steps(OptimizerKind::sgd), slice(can_be_masterless()), 5);
  const std::vector<bool> moment = below(moments_[0]);
  EXPECT_NEAR(share_of(moment), 0.25, five_deviations(0.25));
  if (can_be_masterless()) {
    const std::vector<bool> weight = below(weights_);
    EXPECT_NEAR(share_of(weight), 0.25, five_deviations(0.25));
    EXPECT_NEAR(share_of(both(moment, weight)), 1.0 / 16, five_deviations(1.0 / 16)) << "bits of their own";
  }
  start();
  update(quarter_steps(OptimizerKind::adamw), slice(false), 5);
  const std::vector<bool> first = below(moments_[0]), second = below(moments_[1]);
  EXPECT_EQ(first, moment);
  EXPECT_NEAR(share_of(second), 0.25, five_deviations(0.25));
  EXPECT_NEAR(share_of(both(first, second)), 1.0 / 16, five_deviations(1.0 / 16)) << "bits of their own";
}

TEST_P(RoundingTest, DrawsAnewInEveryStepAndForEverySeedAndParameter) {
  const auto rounded_with = [&](std::uint64_t step, std::uint64_t seed, std::uint32_t identity) {
    start();
    parameter_.identity = identity;
    update(quarter_steps(OptimizerKind::lion, seed), slice(false), step);
    return below(moments_[0]);
  };
  const std::vector<bool> expected = rounded_with(5, kSeed, kIdentity);
  EXPECT_EQ(rounded_with(5, kSeed, kIdentity), expected);
  for (const auto& other : {rounded_with(6, kSeed, kIdentity), rounded_with(5 + (1ull << 32), kSeed, kIdentity),
                            rounded_with(5, kSeed + 1, kIdentity), rounded_with(5, kSeed, kIdentity + 1)}) {
    EXPECT_NEAR(share_of(both(expected, other)), 1.0 / 16, five_deviations(1.0 / 16));
  }
}

/// All devices round alike, by the definition in stochastic_rounding.h.
TEST_P(RoundingTest, ASliceGetsTheBitsOfItsElementsInTheWholeParameter) {
  parameter_ = {kIdentity, 16, 48, 64};
  update(quarter_steps(OptimizerKind::sgd), slice(can_be_masterless()), 9);
  const RoundingBits random(kSeed, 9, kIdentity);
  const auto is_below = [](std::uint32_t bits, float value) { return round_at_random(value, bits) != 1.0f; };
  const std::vector<bool> moment = below(moments_[0]);
  const std::vector<bool> weight = can_be_masterless() ? below(weights_) : std::vector<bool>{};
  for (std::uint32_t i = 0; i < kCount; ++i) {
    const RoundingBits::OfElement bits = random.of(i / 16 * 64 + 48 + i % 16);
    const auto value = static_cast<float>(1.0 - kQuarter);
    ASSERT_EQ(moment[i], is_below(bits.first_moment, value)) << i;
    if (weight.empty()) continue;
    ASSERT_EQ(weight[i], is_below(bits.weight, 1.0f - static_cast<float>(kQuarter) * value)) << i;
  }
}

/// The mean of the weights goes down by as much as with master weights. To the nearest, no weight would move.
TEST_P(RoundingTest, SmallStepsAddUp) {
  if (!can_be_masterless()) GTEST_SKIP() << "these weights are master weights";
  constexpr int kSteps = 32;
  OptimizerSettings settings = quarter_steps(OptimizerKind::sgd);
  settings.momentum = 0.0f;
  gradients_ = bench_->put_as(Values(kCount, 1.0), GetParam().gradients, {kCount});
  const UpdateSlice all = slice(true);
  for (int step = 0; step < kSteps; ++step) update(settings, all, static_cast<std::uint64_t>(step));
  double sum = 0.0;
  for (const double value : bench_->take(weights_)) sum += value;
  EXPECT_NEAR(sum / kCount, 1.0 - kSteps * kQuarter, 0.02 * kSteps * kQuarter);
}

TEST_P(RoundingTest, AScaleThatIsNanLeavesAllAsItIs) {
  UpdateSlice all = slice(can_be_masterless());
  all.gradient_scale = bench_->put_object(std::nanf(""));
  update(quarter_steps(OptimizerKind::adamw), all, 5);
  const Values ones(kCount, 1.0);
  EXPECT_EQ(bench_->take(weights_), ones);
  EXPECT_EQ(bench_->take(moments_[0]), ones);
  EXPECT_EQ(bench_->take(moments_[1]), ones);
}

TEST_P(RoundingTest, NeedsTheParametersForItsBits) {
  UpdateSlice all = slice(can_be_masterless());
  all.parameters = nullptr;
  EXPECT_THROW(update(quarter_steps(OptimizerKind::sgd), all, 5), Error);
}

}  // namespace
}  // namespace ddptrain::tests
