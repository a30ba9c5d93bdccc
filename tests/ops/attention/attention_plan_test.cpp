#include "runtime/ops/attention/attention_plan.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace ddptrain::tests {
namespace {

/// Rounded up to 256, as each array of a workspace is.
std::size_t array(std::int64_t bytes) { return static_cast<std::size_t>((bytes + 255) / 256 * 256); }

AttentionBackwardPlan plan_of(const AttentionShape& shape, const GpuProperties& gpu = {}) {
  return plan_attention_backward(shape, DType::bf16, gpu);
}

/// What docs/reference/description.md says.
std::size_t documented_bytes(const AttentionShape& s, int parts) {
  const std::int64_t scores = s.batch * s.heads * s.sequence * (s.sequence + 128);
  const std::int64_t sums = parts > 1 ? 4 * s.batch * s.sequence * s.key_heads * parts * 128 : 0;
  return array(4 * s.batch * s.heads * s.sequence) + array(scores) + array(sums);
}

TEST(AttentionForwardPlan, TakesHeadsOf128WhoseKeysAreReadFast) {
  const auto kernels_of = [](const AttentionShape& shape, const GpuProperties& gpu = {}) {
    return plan_attention_forward(shape, DType::bf16, gpu);
  };
  for (const AttentionShape& s : {AttentionShape{1, 1, 1, 128, 128}, AttentionShape{8, 12, 2, 1024, 128},
                                  AttentionShape{4, 28, 4, 32768, 128}, AttentionShape{1, 32, 32, 2048, 128}}) {
    EXPECT_EQ(kernels_of(s), AttentionKernels::heads_of_128) << s.heads << " x " << s.sequence;
    EXPECT_EQ(kernels_of(s, {.warpgroups = false}), AttentionKernels::cudnn);
    EXPECT_EQ(kernels_of(s, {.shared_memory = 99 * 1024}), AttentionKernels::cudnn);
    EXPECT_EQ(plan_attention_forward(s, DType::f32, {}), AttentionKernels::others);
  }
  for (const AttentionShape& s : {AttentionShape{8, 12, 2, 1024, 64}, AttentionShape{2, 32, 32, 2048, 128}}) {
    EXPECT_EQ(kernels_of(s), AttentionKernels::cudnn) << s.heads << " x " << s.sequence;
  }
  for (const AttentionShape& s : {AttentionShape{1, 1, 1, 64, 128}, AttentionShape{2, 12, 2, 1000, 128}}) {
    EXPECT_EQ(kernels_of(s), AttentionKernels::others) << s.heads << " x " << s.sequence;
  }
}

TEST(AttentionBackwardPlan, CountsTheMemoryOfHeadsOf128) {
  for (const AttentionShape& s : {AttentionShape{16, 12, 2, 1024, 128}, AttentionShape{1, 28, 4, 8192, 128},
                                  AttentionShape{4, 28, 4, 1024, 128}, AttentionShape{12, 12, 12, 128, 128}}) {
    const AttentionBackwardPlan plan = plan_of(s);
    EXPECT_EQ(plan.kernels, AttentionKernels::heads_of_128) << s.sequence;
    EXPECT_EQ(plan.scratch_bytes, documented_bytes(s, plan.parts)) << s.sequence;
  }
  EXPECT_NEAR(static_cast<double>(plan_of({1, 28, 4, 8192, 128}).scratch_bytes), 1.92e9, 0.02e9);
}

TEST(AttentionBackwardPlan, CountsTheMemoryOfHeadsOf64) {
  const AttentionShape alone{32, 12, 12, 1024, 64}, shared{32, 14, 2, 1024, 64};
  EXPECT_EQ(plan_of(alone).kernels, AttentionKernels::heads_of_64);
  EXPECT_EQ(plan_of(alone).scratch_bytes, std::size_t{132} * 1024 * 64 * 4);
  EXPECT_EQ(plan_of(shared).scratch_bytes, std::size_t{132} * 1024 * 64 * 4 + std::size_t{32} * 1024 * 2 * 14 * 64 * 2);
}

TEST(AttentionBackwardPlan, CountsTheGradientsOfAllScoresForCudnn) {
  const AttentionShape heads_of_96{1, 32, 8, 8192, 96}, gpt{8, 12, 12, 1024, 64};
  EXPECT_EQ(plan_of(heads_of_96).kernels, AttentionKernels::cudnn);
  const std::size_t deltas = 4 * 32 * 8192, of_heads = std::size_t{2} * 2 * 32 * 8192 * 96;
  EXPECT_EQ(plan_of(heads_of_96).scratch_bytes, deltas + std::size_t{2} * 32 * 8192 * 8192 + of_heads);
  EXPECT_EQ(plan_of(gpt).scratch_bytes, std::size_t{4} * 96 * 1024 + std::size_t{2} * 96 * 1024 * 1024);
  EXPECT_EQ(plan_of(gpt, {.capability = 80, .multiprocessors = 108, .warpgroups = false}).scratch_bytes,
            std::size_t{4} * 96 * 1024);
}

TEST(AttentionBackwardPlan, ShortTextsNeedNoMemory) {
  const GpuProperties a100{.capability = 80, .multiprocessors = 108, .warpgroups = false, .shared_memory = 163 * 1024};
  for (const AttentionShape& s :
       {AttentionShape{1024, 2, 2, 80, 128}, AttentionShape{4, 3, 3, 127, 64}, AttentionShape{2, 3, 3, 1, 16}}) {
    for (const GpuProperties& gpu : {GpuProperties{}, a100}) {
      EXPECT_EQ(plan_of(s, gpu).kernels, AttentionKernels::short_texts) << s.sequence;
      EXPECT_EQ(plan_of(s, gpu).scratch_bytes, 0u) << s.sequence;
    }
    EXPECT_EQ(plan_attention_backward(s, DType::f32, {}).kernels, AttentionKernels::others);
  }
  const AttentionShape longest{4, 2, 2, 127, 128}, shares_keys{4, 2, 1, 80, 128}, longer{4, 2, 2, 129, 64};
  EXPECT_EQ(plan_of(longest).kernels, AttentionKernels::short_texts);
  EXPECT_EQ(plan_of(longest, a100).kernels, AttentionKernels::others);  // 164 KiB of shared memory
  EXPECT_EQ(plan_of(shares_keys).kernels, AttentionKernels::others);
  EXPECT_EQ(plan_of(longer).kernels, AttentionKernels::others);
  EXPECT_EQ(plan_of({4, 2, 2, 80, 136}).kernels, AttentionKernels::others);
  EXPECT_EQ(plan_of({4, 2, 2, 80, 20}).kernels, AttentionKernels::others);
  EXPECT_EQ(plan_of({4, 2, 2, 128, 64}).kernels, AttentionKernels::cudnn);
  EXPECT_TRUE(suits_short_attention({4, 2, 2, 128, 64}, DType::bf16, {}));  // if cuDNN has no algorithm
}

TEST(AttentionBackwardPlan, TakesHeadsOf128WithManyGradientsOfScores) {
  for (const auto& [s, bytes] : {std::pair{AttentionShape{1, 28, 4, 16384, 128}, 7.577e9},
                                 std::pair{AttentionShape{1, 12, 2, 32768, 128}, 12.937e9}}) {
    EXPECT_EQ(plan_of(s).kernels, AttentionKernels::heads_of_128) << s.sequence;
    EXPECT_EQ(plan_of(s).scratch_bytes, documented_bytes(s, plan_of(s).parts)) << s.sequence;
    EXPECT_NEAR(static_cast<double>(plan_of(s).scratch_bytes), bytes, 0.001e9) << s.sequence;
  }
  EXPECT_EQ(plan_of({1, 1, 1, 4194176, 128}).kernels, AttentionKernels::heads_of_128);
  EXPECT_EQ(plan_of({1, 1, 1, 4194304, 128}).kernels, AttentionKernels::cudnn);  // 2 x 32,768 x 32,769 tiles
}

TEST(AttentionBackwardPlan, DependsOnShapeTypeAndGpu) {
  const AttentionShape small{1, 8, 2, 1024, 128}, full{16, 12, 2, 1024, 128};
  EXPECT_EQ(plan_of(small).kernels, AttentionKernels::cudnn);  // 64 blocks of keys for 132 multiprocessors
  EXPECT_EQ(plan_of(small, {.multiprocessors = 64}).kernels, AttentionKernels::heads_of_128);
  EXPECT_EQ(plan_of(full, {.warpgroups = false}).kernels, AttentionKernels::cudnn);
  EXPECT_EQ(plan_of(full, {.shared_memory = 99 * 1024}).kernels, AttentionKernels::cudnn);
  EXPECT_EQ(plan_of({16, 12, 2, 1000, 128}).kernels, AttentionKernels::others);
  const AttentionBackwardPlan fp32 = plan_attention_backward(full, DType::f32, {});
  EXPECT_EQ(fp32.kernels, AttentionKernels::others);
  EXPECT_EQ(fp32.scratch_bytes, std::size_t{4} * 16 * 12 * 1024);
  EXPECT_EQ(plan_of({1, 132, 132, 16384, 64}).kernels, AttentionKernels::heads_of_64);
  EXPECT_EQ(plan_of({1, 132, 132, 32768, 64}).kernels, AttentionKernels::cudnn);  // too little shared memory
}

/// Bits of a run depend on the number of parts. With 132 multiprocessors.
TEST(AttentionBackwardPlan, KeepsItsParts) {
  const std::vector<std::pair<AttentionShape, int>> known = {{{16, 12, 2, 1024, 128}, 1},  {{4, 28, 4, 1024, 128}, 7},
                                                             {{8, 28, 4, 2048, 128}, 1},   {{1, 28, 4, 8192, 128}, 1},
                                                             {{16, 12, 12, 1024, 128}, 1}, {{8, 32, 8, 1024, 128}, 1}};
  for (const auto& [shape, parts] : known)
    EXPECT_EQ(plan_of(shape).parts, parts) << shape.batch << " x " << shape.sequence;
}

TEST(AttentionBackwardPlans, MakesAPlanOncePerShape) {
  std::vector<AttentionShape> made;
  AttentionBackwardPlans plans([&](const AttentionShape& shape) {
    made.push_back(shape);
    return plan_of(shape);
  });
  const AttentionShape one{16, 12, 2, 1024, 128}, other{8, 12, 2, 1024, 128};
  const AttentionBackwardPlan& first = plans.of(one);
  for (int layer = 0; layer < 28; ++layer) {
    EXPECT_EQ(&plans.of(one), &first);
    EXPECT_EQ(plans.of(other).scratch_bytes, plan_of(other).scratch_bytes);
  }
  EXPECT_EQ(made, (std::vector<AttentionShape>{one, other}));
}

}  // namespace
}  // namespace ddptrain::tests
