#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulated/attention_wgmma_128_run.h"
// The kernel, after what stands for CUDA.
#include "runtime/ops/cuda/attention/attention_forward_128.cuh"

namespace ddptrain::cuda::attention_forward_128 {
namespace {

alignas(1024) char memory[sizeof(Shared)];
static_assert(sizeof(Shared) <= 227 * 1024);

struct Case {
  emulated::AttentionSizes sizes;
  int blocks;
  bool work_late;
};

std::string describe(const Case& c) {
  const emulated::AttentionSizes& s = c.sizes;
  return std::to_string(s.batch) + " x " + std::to_string(s.sequence) + " x " + std::to_string(s.heads) +
         " heads with " + std::to_string(s.key_heads) + " keys on " + std::to_string(c.blocks) + " blocks, scores of " +
         std::to_string(s.queries) + ", products " + (c.work_late ? "late" : "at once") + ", seed " +
         std::to_string(s.seed);
}

struct Output {
  std::vector<bf16> out;
  std::vector<float> statistics;
};

Output run(const Case& c, const emulated::AttentionReference& tensors) {
  const emulated::AttentionSizes& s = c.sizes;
  Output output{std::vector<bf16>(tensors.out.size(), __float2bfloat16(NAN)),
                std::vector<float>(tensors.statistics.size(), NAN)};
  const CUtensorMap map =
      emulated::Matrix{tensors.qkv.data(), std::int64_t{s.batch} * s.sequence, (s.heads + 2 * s.key_heads) * kHead}
          .map();
  const Problem p{{s.batch, s.sequence, s.heads, s.key_heads},
                  output.out.data(),
                  output.statistics.data(),
                  1.0f / std::sqrt(float{kHead})};
  gridDim.x = c.blocks;
  for (int block = 0; block < c.blocks; ++block) {
    blockIdx.x = block;
    std::fill_n(memory, sizeof(memory), '\xFF');
    emulated::Block({kThreadsAndFetching, s.seed, c.work_late, memory}).run([&] { forward_kernel(map, p); });
  }
  return output;
}

void expect_near(const Output& output, const emulated::AttentionReference& tensors, const std::string& what) {
  double difference = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < output.out.size(); ++i) {
    difference += std::pow(__bfloat162float(output.out[i]) - __bfloat162float(tensors.out[i]), 2);
    norm += std::pow(__bfloat162float(tensors.out[i]), 2);
  }
  EXPECT_LT(std::sqrt(difference / norm), 4e-3) << what;
  double largest = 0.0;
  for (std::size_t i = 0; i < output.statistics.size(); ++i) {
    const double error =
        std::abs(output.statistics[i] - tensors.statistics[i]) / (1.0 + std::abs(tensors.statistics[i]));
    largest = std::isnan(error) ? INFINITY : std::max(largest, error);
  }
  EXPECT_LT(largest, 1e-5) << "statistics, " << what;
}

std::vector<Case> early_and_late(const std::vector<std::pair<emulated::AttentionSizes, int>>& shapes) {
  std::vector<Case> cases;
  for (const bool late : {false, true}) {
    for (const auto& [sizes, blocks] : shapes) {
      cases.push_back({sizes, blocks, late});
      cases.back().sizes.seed += 100 * cases.size();
    }
  }
  return cases;
}

TEST(EmulatedAttentionTest, ForwardWithHeadsOf128EqualsDoublePrecision) {
  for (const Case& c : early_and_late({{{1, 128, 1, 1, kHead, 1}, 1},
                                       {{1, 384, 1, 1, kHead, 2}, 1},
                                       {{3, 128, 2, 2, kHead, 3}, 2},
                                       {{2, 256, 3, 1, kHead, 4}, 5},
                                       {{1, 256, 12, 2, kHead, 5}, 7},
                                       {{1, 128, 28, 4, kHead, 6}, 3},
                                       {{1, 1024, 2, 1, kHead, 7}, 2}})) {
    const emulated::AttentionReference tensors(c.sizes);
    Output output;
    ASSERT_NO_THROW(output = run(c, tensors)) << describe(c);
    expect_near(output, tensors, describe(c));
  }
}

TEST(EmulatedAttentionTest, ForwardWithHeadsOf128TakesLargeScores) {
  for (const float size : {30.0f, 3000.0f, 1e6f}) {
    for (const Case& c : early_and_late({{{1, 512, 2, 1, kHead, 1, size}, 2}})) {
      const emulated::AttentionReference tensors(c.sizes);
      expect_near(run(c, tensors), tensors, describe(c));
    }
  }
}

TEST(EmulatedAttentionTest, ForwardWithHeadsOf128GivesTheSameBitsOnAnyNumberOfBlocks) {
  const emulated::AttentionSizes sizes{2, 384, 3, 1, kHead, 1};
  const emulated::AttentionReference tensors(sizes);
  const Output first = run({sizes, 1, false}, tensors);
  for (const int blocks : {2, 5, 18}) {
    const Output again = run({sizes, blocks, true}, tensors);
    EXPECT_EQ(first.statistics, again.statistics) << blocks;
    EXPECT_TRUE(std::ranges::equal(first.out, again.out, [](bf16 a, bf16 b) {
      return __bfloat162float(a) == __bfloat162float(b);
    })) << blocks;
  }
}

/// The backward pass reads output and statistics of the kernel.
TEST(EmulatedAttentionTest, BackwardWithHeadsOf128FollowsForward) {
  for (const Case& c : early_and_late({{{2, 256, 3, 1, kHead, 1}, 2}, {{1, 384, 2, 2, kHead, 2, 8.0f}, 3}})) {
    emulated::AttentionReference tensors(c.sizes);
    const Output output = run(c, tensors);
    std::ranges::copy(output.out, tensors.out.begin());
    tensors.statistics = output.statistics;
    const emulated::AttentionSizes& s = c.sizes;
    attention_wgmma_128::run({s.batch, s.sequence, s.heads, s.key_heads, 1, 3, c.work_late, s.seed}, tensors);
    tensors.expect_gradients(describe(c));
  }
}

TEST(EmulatedAttentionTest, ThreadBlocksOfForwardTakeAboutAsManySteps) {
  constexpr int kBlocks = 132;
  const Problem p{{8, 1024, 12, 2}, nullptr, nullptr, 1.0f};
  std::vector<double> steps(kBlocks);
  std::vector<int> items(static_cast<std::size_t>(p.units() * kWarpgroups));
  gridDim.x = kBlocks;
  for (int block = 0; block < kBlocks; ++block) {
    blockIdx.x = block;
    emulated::Block({32, 1, false, memory}).run([&] {
      if (threadIdx.x != 0) return;
      for (Unit unit = Unit::of_round(0, p); unit.exists(); unit = Unit::of_round(unit.round + 1, p)) {
        for (int group = 0; group < kWarpgroups; ++group) {
          const Item item = unit.item(group, p);
          ++items[static_cast<std::size_t>(((item.sample * 12 + item.head) * 1024 + item.position) / kRows)];
          EXPECT_EQ(item.position / kKeys + 1, item.steps);
          steps[static_cast<std::size_t>(block)] += item.steps - (item.has_half ? 0.5 : 0.0);
        }
      }
    });
  }
  EXPECT_EQ(items, std::vector<int>(items.size(), 1));
  const double mean = std::accumulate(steps.begin(), steps.end(), 0.0) / kBlocks;
  EXPECT_LT(*std::max_element(steps.begin(), steps.end()), 1.03 * mean);
}

}  // namespace
}  // namespace ddptrain::cuda::attention_forward_128
