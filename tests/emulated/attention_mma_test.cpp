#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/emulated/attention_reference.h"
#include "tests/emulated/device.h"
// The kernels, after what stands for CUDA.
#include "runtime/ops/cuda/attention/attention_mma.cuh"

namespace ddptrain::cuda::attention_mma {

alignas(1024) uint4 memory[227 * 64];  // NOLINT: the kernels' shared memory

namespace {

struct Case {
  emulated::AttentionSizes sizes;
  bool copies_late;
};

std::string describe(const Case& c) {
  return std::to_string(c.sizes.batch) + " x " + std::to_string(c.sizes.sequence) + " x " +
         std::to_string(c.sizes.heads) + " heads with " + std::to_string(c.sizes.key_heads) + " keys of " +
         std::to_string(c.sizes.head_size) + (c.copies_late ? ", copies late" : ", copies at once");
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const bool late : {false, true}) {
    all.push_back({{2, 80, 2, 2, 128, 1}, late});
    all.push_back({{1, 33, 2, 2, 64, 2}, late});
    all.push_back({{2, 7, 3, 3, 8, 3}, late});
    all.push_back({{1, 150, 1, 1, 40, 4}, late});
    all.push_back({{1, 128, 1, 1, 72, 5}, late});
    all.push_back({{2, 50, 4, 2, 64, 6}, late});
    all.push_back({{1, 150, 3, 1, 32, 7}, late});
  }
  return all;
}

template <class Kernel>
void run(Kernel kernel, int heads, const Case& c, const Pointers& pointers) {
  const emulated::AttentionSizes& s = c.sizes;
  const Shape shape{s.heads, s.key_heads, s.sequence, s.head_size, 1.0f / std::sqrt(static_cast<float>(s.head_size))};
  const Grid grid(s.sequence);
  auto* const shared = reinterpret_cast<char*>(memory);
  blockDim.x = 32 * grid.warps;
  for (int head = 0; head < s.batch * heads; ++head) {
    for (int block = 0; block < grid.blocks; ++block) {
      blockIdx = {block, head};
      std::fill_n(shared, sizeof(memory), '\xFF');
      emulated::Block({blockDim.x, s.seed, c.copies_late, shared}).run([&] { kernel(pointers, shape); });
    }
  }
}

/// kHead: the columns that the kernels are made for.
template <int kHead>
void attend(const Case& c, const Pointers& pointers) {
  run(forward_kernel<kHead>, c.sizes.heads, c, pointers);
}
template <int kHead>
void go_back(const Case& c, const Pointers& pointers) {
  run(dq_kernel<kHead>, c.sizes.heads, c, pointers);
  run(dkv_kernel<kHead>, c.sizes.key_heads, c, pointers);
}

TEST(EmulatedAttentionTest, ForwardByWarpsEqualsDoublePrecision) {
  for (const Case& c : cases()) {
    emulated::AttentionReference expected(c.sizes);
    std::vector<bf16> out(expected.out.size(), __float2bfloat16(NAN));
    std::vector<float> statistics(expected.statistics.size(), NAN);
    const Pointers pointers{expected.qkv.data(), out.data(), statistics.data(), nullptr, nullptr, nullptr};
    const int head = c.sizes.head_size;
    ASSERT_NO_THROW(head <= 32   ? attend<32>(c, pointers)
                    : head <= 64 ? attend<64>(c, pointers)
                                 : attend<128>(c, pointers))
        << describe(c);
    for (std::size_t i = 0; i < statistics.size(); ++i) {
      ASSERT_NEAR(statistics[i], expected.statistics[i], 1e-4) << i << ", " << describe(c);
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      ASSERT_NEAR(__bfloat162float(out[i]), __bfloat162float(expected.out[i]), 2e-2) << i << ", " << describe(c);
    }
  }
}

TEST(EmulatedAttentionTest, BackwardByWarpsEqualsDoublePrecision) {
  for (const Case& c : cases()) {
    emulated::AttentionReference tensors(c.sizes);
    const std::vector<float> deltas = tensors.deltas();
    const Pointers pointers{tensors.qkv.data(),      tensors.out.data(),  tensors.statistics.data(),
                            tensors.d_output.data(), tensors.dqkv.data(), deltas.data()};
    const int head = c.sizes.head_size;
    ASSERT_NO_THROW(head <= 32   ? go_back<32>(c, pointers)
                    : head <= 64 ? go_back<64>(c, pointers)
                                 : go_back<128>(c, pointers))
        << describe(c);
    tensors.expect_gradients(describe(c));
  }
}

}  // namespace
}  // namespace ddptrain::cuda::attention_mma
