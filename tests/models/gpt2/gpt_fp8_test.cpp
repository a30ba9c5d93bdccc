#include <algorithm>
#include <utility>
#include <vector>

#include "tests/models/gpt2/gpt_runs.h"

namespace ddptrain::tests {
namespace {

class GptFp8Test : public ::testing::Test {
 protected:
  static constexpr Gpt2Shape kShape{4, 64, 2, 128, 96, 50};

  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    bf16_ = make_cuda_device({.precision = Precision::bf16}, 0);
    fp8_ = make_cuda_device({.precision = Precision::bf16, .fp8 = true}, 0);
  }

  /// Of a step, two that accumulate, and one more. What is evaluated between them has other tokens.
  static std::vector<Gradients> gradients(Device& device, float dropout, Recompute recompute, bool evaluate = false) {
    ModelRun run(device, DType::bf16, [&](Bench& bench) {
      const TokenBatch data = random_tokens(bench, kBatch, 96, 50, 12);
      return bind_gpt(device, make_options(kShape, dropout, recompute), data, random_tokens(bench, 2, 96, 50, 112));
    });
    std::vector<Gradients> result;
    for (const std::uint32_t first : {0, 4, 8, 12}) {
      Slice slice = run.slice();
      slice.order.first = first;
      if (evaluate && first > 0) run.evaluate(run.slice(2));
      run.forward(slice, 0.01f);
      result.push_back(run.backward(first == 8));
    }
    return result;
  }

  std::unique_ptr<Device> bf16_, fp8_;
};

TEST_F(GptFp8Test, GradientsAreNearThoseOfBf16) {
  for (const float dropout : {0.0f, 0.1f}) {
    const std::vector<Gradients> all = gradients(*fp8_, dropout, Recompute::none);
    const std::vector<Gradients> all_expected = gradients(*bf16_, dropout, Recompute::none);
    for (std::size_t step = 0; step < all.size(); ++step) {
      double largest = 0.0;
      for (const auto& [name, values] : all_expected[step]) largest = std::max(largest, norm(values));
      for (const auto& [name, expected] : all_expected[step]) {
        const Values& found = all[step].at(name);
        const double allowed = 0.15 * std::max(norm(expected), 0.01 * largest);  // small ones are sums that cancel
        EXPECT_LE(relative_error(found, expected) * norm(expected), allowed) << name << ", step " << step;
        EXPECT_NE(found, expected) << name << ", step " << step;
      }
    }
  }
}

TEST_F(GptFp8Test, RecomputedGradientsAreTheSameBits) {
  for (const float dropout : {0.0f, 0.1f}) {
    const std::vector<Gradients> kept = gradients(*fp8_, dropout, Recompute::none);
    EXPECT_EQ(gradients(*fp8_, dropout, Recompute::none), kept);
    EXPECT_EQ(gradients(*fp8_, dropout, Recompute::gelu), kept);
    EXPECT_EQ(gradients(*fp8_, dropout, Recompute::selective), kept);
    EXPECT_EQ(gradients(*fp8_, dropout, Recompute::block), kept);
  }
}

TEST_F(GptFp8Test, EvaluationsLeaveStepsAsTheyAre) {
  EXPECT_EQ(gradients(*fp8_, 0.0f, Recompute::none, true), gradients(*fp8_, 0.0f, Recompute::none));
}

/// Seven rows are not for FP8.
TEST_F(GptFp8Test, OddBatchesAreComputedInBf16) {
  const auto losses = [](Device& device) {
    ModelRun run(device, DType::bf16, [&](Bench& bench) {
      return bind_gpt(device, make_options(kShape), random_tokens(bench, kBatch, 96, 50),
                      random_tokens(bench, kBatch, 7, 50));
    });
    const double before = run.forward(run.slice(), 0.01f).loss;
    const double odd = run.evaluate(run.slice(1)).loss;
    EXPECT_EQ(run.forward(run.slice(), 0.01f).loss, before);
    return std::pair{odd, before};
  };
  const auto [odd, even] = losses(*fp8_);
  const auto [expected_odd, expected_even] = losses(*bf16_);
  EXPECT_EQ(odd, expected_odd);
  EXPECT_NEAR(even, expected_even, 0.01 * expected_even);
}

}  // namespace
}  // namespace ddptrain::tests
