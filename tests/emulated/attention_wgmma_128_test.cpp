#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/emulated/attention_wgmma_128_run.h"

namespace ddptrain::cuda::attention_wgmma_128 {
namespace {

TEST(EmulatedAttentionTest, BackwardWithHeadsOf128EqualsDoublePrecision) {
  std::vector<Case> cases;
  for (const bool late : {false, true}) {
    cases.push_back({1, 128, 1, 1, 1, 1, late, 1});
    cases.push_back({1, 256, 2, 2, 1, 2, late, 2});
    cases.push_back({1, 512, 2, 1, 1, 3, late, 3});
    cases.push_back({2, 256, 3, 1, 2, 5, late, 4});
    cases.push_back({2, 128, 8, 2, 3, 3, late, 5});
  }
  for (const Case& c : cases) {
    emulated::AttentionReference tensors({c.batch, c.sequence, c.heads, c.key_heads, kHead, c.seed});
    ASSERT_NO_THROW(run(c, tensors)) << describe(c);
    tensors.expect_gradients(describe(c));
  }
}

TEST(EmulatedAttentionTest, ThreadBlocksTakeAboutAsManySteps) {
  constexpr int kBlocks = 132;
  Problem p{};
  p.batch = 8;
  p.sequence = 1024;
  p.heads = 12;
  p.key_heads = 2;
  p.parts = 2;
  std::vector<int> steps(kBlocks);
  gridDim.x = kBlocks;
  for (int block = 0; block < kBlocks; ++block) {
    blockIdx.x = block;
    emulated::Block({32, 1, false, memory}).run([&] {
      if (threadIdx.x != 0) return;
      for (Place at = Place::start(0, p); at.exists(); at.advance(p)) ++steps[static_cast<std::size_t>(block)];
    });
  }
  const int all = p.batch * p.heads * p.blocks() * (p.blocks() + 1);
  EXPECT_EQ(std::accumulate(steps.begin(), steps.end(), 0), all);
  EXPECT_LT(*std::max_element(steps.begin(), steps.end()), 1.1 * all / kBlocks);
}

/// Also where they take more bytes than 32 bits can count.
TEST(EmulatedAttentionTest, TilesOfGradientsOfScoresFollowEachOther) {
  for (const Sizes& sizes :
       {Sizes{2, 1024, 3, 1}, Sizes{1, 16384, 28, 4}, Sizes{1, 32768, 12, 2}, Sizes{1, 4194176, 2, 1}}) {
    Problem p{sizes};
    p.dscores = memory;
    std::int64_t before = 0;
    for (int head = 0; head < sizes.batch * sizes.heads; ++head) {
      for (int tile = 0; tile < sizes.tiles(); ++tile) {
        ASSERT_EQ(p.dscores_of(head, tile) - memory, before * kTileBytes) << head << ", " << tile;
        before += 2 * (tile / 2 + 1);
      }
    }
    const auto heads = static_cast<std::size_t>(sizes.batch * sizes.heads);
    EXPECT_EQ(dscore_bytes(heads, sizes.blocks()), static_cast<std::size_t>(before) * kTileBytes);
  }
}

/// Where no collectives overlap, more blocks run.
TEST(EmulatedAttentionTest, BackwardWithHeadsOf128GivesTheSameBitsOnAnyNumberOfBlocks) {
  const auto gradients_on = [](int blocks) {
    const Case c{1, 384, 3, 1, 2, blocks, blocks % 2 == 0, 6};
    emulated::AttentionReference tensors({c.batch, c.sequence, c.heads, c.key_heads, kHead, c.seed});
    run(c, tensors);
    return tensors.bits_of_gradients();
  };
  const auto first = gradients_on(1);
  for (const int blocks : {2, 5, 6}) EXPECT_EQ(first, gradients_on(blocks)) << blocks;
}

}  // namespace
}  // namespace ddptrain::cuda::attention_wgmma_128
