#include "runtime/ops/activation.h"
#include "tests/ops/bench.h"

namespace ddptrain::tests {
namespace {

TEST(Philox, KnownAnswers) {  // Random123, tests/kat_vectors
  const Philox zeros = philox(0, 0, 0, 0, 0);
  EXPECT_EQ(zeros.word[0], 0x6627e8d5u);
  EXPECT_EQ(zeros.word[1], 0xe169c58du);
  EXPECT_EQ(zeros.word[2], 0xbc57ac4cu);
  EXPECT_EQ(zeros.word[3], 0x9b00dbd8u);
  const Philox ones = philox(~0u, ~0u, ~0u, ~0u, ~0ull);
  EXPECT_EQ(ones.word[0], 0x408f276du);
  EXPECT_EQ(ones.word[1], 0x41c83b0eu);
  EXPECT_EQ(ones.word[2], 0xa20bc7c6u);
  EXPECT_EQ(ones.word[3], 0x6d5451fdu);
}

TEST(Dropout, EveryFeatureHasItsOwnBits) {
  constexpr std::uint32_t kFeatures = 9216;
  std::vector<int> uses(kFeatures, 0);
  for (std::uint32_t f = 0; f < kFeatures; ++f) {
    const DropoutSlot slot = dropout_slot(f);
    ASSERT_LT(slot.lane, 8u);
    ASSERT_LT(slot.call * 8 + slot.lane, kFeatures);
    ++uses[slot.call * 8 + slot.lane];
  }
  EXPECT_EQ(uses, std::vector<int>(kFeatures, 1));
}

class DropoutTest : public DeviceTest {
 protected:
  /// What bias_relu_dropout makes of ones: the factors of the mask.
  Values factors(const Dropout& dropout, std::int64_t rows, std::int64_t features) {
    const Tensor ones = bench_->put(Values(static_cast<std::size_t>(rows * features), 1.0), {rows, features});
    device_->get<ActivationOps>().bias_relu_dropout(
        ones, bench_->put(Values(static_cast<std::size_t>(features), 0.0), {features}), dropout);
    return bench_->take(ones);
  }
};

TEST_P(DropoutTest, MasksAreThoseOfKeeps) {
  const StepState state{(5ull << 32) + 11};
  for (const std::int64_t features : {1, 31, 64, 100, 777}) {
    for (const float rate : {0.25f, 0.5f, 0.9f}) {
      Dropout dropout{rate, 0x123456789abcdefull, 3, 17, {bench_->put_object(state), 4}};
      const Values values = factors(dropout, 5, features);
      dropout.step.state = &state;
      for (std::uint32_t row = 0; row < 5; ++row) {
        for (std::uint32_t f = 0; f < features; ++f) {
          ASSERT_EQ(values[static_cast<std::size_t>(row * features + f)] != 0.0, dropout.keeps(f, row))
              << "row " << row << " feature " << f << " of " << features;
        }
      }
    }
  }
}

TEST_P(DropoutTest, SitesStepsAndSeedsDiffer) {
  const StepRef step{bench_->put_object(StepState{2}), 0};
  const Values mask = factors({0.5f, 1, 1, 0, step}, 2, 256);
  EXPECT_NE(mask, factors({0.5f, 1, 2, 0, step}, 2, 256));
  EXPECT_NE(mask, factors({0.5f, 2, 1, 0, step}, 2, 256));
  EXPECT_NE(mask, factors({0.5f, 1, 1, 0, {step.state, 1}}, 2, 256));
  EXPECT_EQ(mask, factors({0.5f, 1, 1, 0, step}, 2, 256));
}

TEST_P(DropoutTest, RateAndMeanAreRight) {
  constexpr std::int64_t kRows = 64;
  constexpr std::int64_t kFeatures = 4096;
  for (const float rate : {0.1f, 0.25f, 0.5f}) {
    const Values values = factors({rate, 5, 1, 0, {bench_->put_object(StepState{9}), 0}}, kRows, kFeatures);
    double dropped = 0.0;
    double sum = 0.0;
    for (const double value : values) {
      dropped += value == 0.0 ? 1.0 : 0.0;
      sum += value;
    }
    const double count = kRows * kFeatures;
    const double deviation = std::sqrt(rate * (1.0 - rate) / count);
    EXPECT_NEAR(dropped / count, rate, 4 * deviation + 1.0 / 65536);
    EXPECT_NEAR(sum / count, 1.0, 4 * deviation / (1.0 - rate) + GetParam().tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, DropoutTest, ::testing::ValuesIn(device_cases()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace ddptrain::tests
