#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/emulated/attention_reference.h"
#include "tests/emulated/device.h"
// The kernel, after what stands for CUDA.
#include "runtime/ops/cuda/attention/attention_short.cuh"

namespace ddptrain::cuda::attention_short {

alignas(1024) char shared[227 * 1024];  // NOLINT: the kernel's shared memory

namespace {

/// kHead: the columns that the kernel is made for.
template <int kHead>
void run(const emulated::AttentionSizes& c, bool copies_late, emulated::AttentionReference& tensors) {
  const int tiles = tiles_of(c.sequence);
  const Pointers pointers{tensors.qkv.data(), tensors.out.data(), tensors.statistics.data(), tensors.d_output.data(),
                          tensors.dqkv.data()};
  const Shape shape{c.heads, c.key_heads, c.sequence, c.head_size, 1.0f / std::sqrt(static_cast<float>(c.head_size))};
  blockDim.x = 32 * tiles;
  for (int head = 0; head < c.batch * c.heads; ++head) {
    blockIdx = {0, head};
    std::fill_n(shared, sizeof(shared), '\xFF');
    emulated::Block({blockDim.x, c.seed, copies_late, shared}).run([&] { backward_kernel<kHead>(pointers, shape); });
    char* const end = shared + shared_bytes(tiles, kHead);
    EXPECT_TRUE(std::all_of(end, shared + sizeof(shared), [](char byte) { return byte == '\xFF'; }));
  }
}

TEST(EmulatedAttentionTest, BackwardOfShortSequencesEqualsDoublePrecision) {
  for (const emulated::AttentionSizes& c : std::vector<emulated::AttentionSizes>{{2, 80, 2, 2, 128, 1},
                                                                                 {1, 128, 2, 2, 64, 2},
                                                                                 {2, 33, 2, 2, 32, 3},
                                                                                 {2, 1, 3, 3, 16, 4},
                                                                                 {1, 100, 3, 3, 72, 5},
                                                                                 {1, 17, 1, 1, 128, 6},
                                                                                 {1, 127, 1, 1, 40, 7}}) {
    for (const bool late : {false, true}) {
      const std::string what = std::to_string(c.sequence) + " tokens, heads of " + std::to_string(c.head_size) +
                               (late ? ", copies late" : ", copies at once");
      emulated::AttentionReference tensors(c);
      const auto work = [&] { columns_of(c.head_size) == 64 ? run<64>(c, late, tensors) : run<128>(c, late, tensors); };
      ASSERT_NO_THROW(work()) << what;
      tensors.expect_gradients(what, c.sequence == 1 ? 2 : 0);  // one token leaves q and k without gradients
    }
  }
}

}  // namespace
}  // namespace ddptrain::cuda::attention_short
