#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "tests/emulated/attention_reference.h"
#include "tests/emulated/device.h"
#include "tests/emulated/scratch.h"
// The kernels, after what stands for CUDA.
#include "runtime/ops/cuda/attention/attention_wgmma_128.cuh"

namespace ddptrain::cuda::attention_wgmma_128 {
namespace {

alignas(1024) char memory[sizeof(KeysShared)];
static_assert(sizeof(KeysShared) <= 227 * 1024 && sizeof(QueriesShared) <= sizeof(KeysShared));

struct Case {
  int batch, sequence, heads, key_heads, parts, blocks;
  bool work_late;
  unsigned seed;
};

std::string describe(const Case& c) {
  return std::to_string(c.batch) + " x " + std::to_string(c.sequence) + " x " + std::to_string(c.heads) +
         " heads with " + std::to_string(c.key_heads) + " keys in " + std::to_string(c.parts) + " parts on " +
         std::to_string(c.blocks) + " blocks, products " + (c.work_late ? "late" : "at once") + ", seed " +
         std::to_string(c.seed);
}

template <class Kernel>
void launch(int blocks, int threads, const Case& c, const Kernel& kernel) {
  gridDim.x = blocks;
  for (int block = 0; block < blocks; ++block) {
    blockIdx.x = block;
    std::fill_n(memory, sizeof(memory), '\xFF');
    emulated::Block({threads, c.seed, c.work_late, memory}).run(kernel);
  }
}

void run(const Case& c, emulated::AttentionReference& tensors) {
  const std::int64_t rows = std::int64_t{c.batch} * c.sequence, width = c.heads * kHead;
  const int columns = (c.heads + 2 * c.key_heads) * kHead, parts_width = c.key_heads * c.parts * kHead;
  const Work work{c.batch, c.sequence, c.heads, c.key_heads, c.parts};
  const emulated::Scratch scratch(Workspace(nullptr, work).bytes);
  const Workspace workspace(scratch.data(), work);
  bf16* const dkeys = c.parts > 1 ? static_cast<bf16*>(workspace.parts) : tensors.dqkv.data() + width;
  const Maps maps{emulated::Matrix{tensors.qkv.data(), rows, columns}.map(),
                  emulated::Matrix{tensors.d_output.data(), rows, width}.map()};
  const Problem p{.statistics = tensors.statistics.data(),
                  .deltas = workspace.deltas,
                  .dscores = workspace.dscores,
                  .dqkv = tensors.dqkv.data(),
                  .dkeys = dkeys,
                  .dvalues = dkeys + parts_width,
                  .dkeys_row = c.parts > 1 ? 2 * parts_width : columns,
                  .batch = c.batch,
                  .sequence = c.sequence,
                  .heads = c.heads,
                  .key_heads = c.key_heads,
                  .parts = c.parts,
                  .scale = 1.0f / std::sqrt(float{kHead})};
  launch(static_cast<int>(rows) * c.heads / kDeltasOfBlock, kDeltaThreads, c,
         [&] { deltas_kernel(tensors.out.data(), tensors.d_output.data(), workspace.deltas, p); });
  launch(c.blocks, kKeysThreads, c, [&] { keys_kernel(maps, p); });
  launch(c.batch * c.heads * p.blocks(), kThreads, c, [&] { queries_kernel(maps, p); });
  if (c.parts == 1) return;
  const auto packs = static_cast<std::uint32_t>(rows * 2 * c.key_heads * kPacksOfHead);
  launch((static_cast<int>(packs) + kSumThreads - 1) / kSumThreads, kSumThreads, c,
         [&] { sum_parts_kernel(p, packs); });
}

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

}  // namespace
}  // namespace ddptrain::cuda::attention_wgmma_128
