#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/emulated/attention_reference.h"
#include "tests/emulated/device.h"
#include "tests/emulated/scratch.h"
// The kernel, after what stands for CUDA.
#include "runtime/ops/cuda/attention/attention_wgmma.cuh"

namespace ddptrain::cuda::attention_wgmma {

alignas(1024) char memory[227 * 1024];  // NOLINT: the kernel's shared memory

namespace {

struct Case {
  int batch, sequence, heads, key_heads, blocks;
  int resident;  // tiles
  bool work_late;
  unsigned seed;
};

std::string describe(const Case& c) {
  return std::to_string(c.batch) + " x " + std::to_string(c.sequence) + " x " + std::to_string(c.heads) +
         " heads with " + std::to_string(c.key_heads) + " keys on " + std::to_string(c.blocks) + " blocks, " +
         std::to_string(c.resident) + " resident tiles, products " + (c.work_late ? "late" : "at once") + ", seed " +
         std::to_string(c.seed);
}

void run(const Case& c, emulated::AttentionReference& tensors) {
  const std::int64_t rows = std::int64_t{c.batch} * c.sequence, width = c.heads * kHead;
  const int columns = (c.heads + 2 * c.key_heads) * kHead;
  const AttentionShape shape{c.batch, c.heads, c.key_heads, c.sequence, kHead};
  const emulated::Scratch scratch(Workspace(nullptr, shape, c.blocks).bytes);
  const Workspace workspace(scratch.data(), shape, c.blocks);
  const bool has_parts = c.key_heads != c.heads;
  bf16* const dkeys = has_parts ? static_cast<bf16*>(workspace.parts) : tensors.dqkv.data() + width;
  const Maps maps{emulated::Matrix{tensors.qkv.data(), rows, columns}.map(),
                  emulated::Matrix{tensors.out.data(), rows, width}.map(),
                  emulated::Matrix{tensors.d_output.data(), rows, width}.map()};
  const Problem problem{tensors.statistics.data(),
                        reinterpret_cast<float4*>(workspace.partial_dq),
                        tensors.dqkv.data(),
                        dkeys,
                        dkeys + width,
                        static_cast<int>(has_parts ? 2 * width : columns),
                        c.sequence,
                        c.heads,
                        c.key_heads,
                        c.batch * c.heads,
                        c.resident,
                        1.0f / std::sqrt(float{kHead})};
  gridDim.x = c.blocks;
  for (int block = 0; block < c.blocks; ++block) {
    blockIdx.x = block;
    std::fill_n(memory, sizeof(memory), '\xFF');
    emulated::Block({kThreads, c.seed, c.work_late, memory}).run([&] { backward_kernel(maps, problem); });
  }
  const auto packs = static_cast<std::uint32_t>(rows * 2 * c.key_heads * kPacksOfHead);
  for (int block = 0; has_parts && block * kSumThreads < static_cast<int>(packs); ++block) {
    blockIdx.x = block;
    emulated::Block({kSumThreads, c.seed, c.work_late, memory}).run([&] { sum_parts_kernel(problem, packs); });
  }
}

TEST(EmulatedAttentionTest, BackwardByWarpgroupsEqualsDoublePrecision) {
  std::vector<Case> cases;
  for (const bool late : {false, true}) {
    cases.push_back({1, 128, 3, 3, 2, 0, late, 1});
    cases.push_back({1, 256, 3, 3, 2, 0, late, 2});
    cases.push_back({1, 256, 3, 3, 2, 4, late, 3});
    cases.push_back({2, 512, 2, 2, 3, 3, late, 4});
    cases.push_back({2, 256, 6, 2, 5, 1, late, 5});
  }
  for (const Case& c : cases) {
    emulated::AttentionReference tensors({c.batch, c.sequence, c.heads, c.key_heads, kHead, c.seed});
    ASSERT_NO_THROW(run(c, tensors)) << describe(c);
    tensors.expect_gradients(describe(c));
  }
}

/// Where no collectives overlap, more blocks run.
TEST(EmulatedAttentionTest, BackwardByWarpgroupsGivesTheSameBitsOnAnyNumberOfBlocks) {
  const auto gradients_on = [](int blocks) {
    const Case c{1, 256, 6, 2, blocks, 1, blocks % 2 == 0, 6};
    emulated::AttentionReference tensors({c.batch, c.sequence, c.heads, c.key_heads, kHead, c.seed});
    run(c, tensors);
    return tensors.bits_of_gradients();
  };
  const auto first = gradients_on(1);
  for (const int blocks : {2, 5, 6}) EXPECT_EQ(first, gradients_on(blocks)) << blocks;
}

}  // namespace
}  // namespace ddptrain::cuda::attention_wgmma
