#include "benchmarks/ddpbench/collectives/check_pattern.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "runtime/device/device.h"

namespace ddptrain::bench {
namespace {

Tensor view(std::vector<float>& values) {
  return {values.data(), DType::f32, {static_cast<std::int64_t>(values.size())}};
}

std::vector<float> sum_over(int ranks, std::size_t count) {
  std::vector<float> sum(count, 0.0f);
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<float> mine(count);
    fill_pattern(view(mine), rank);
    for (std::size_t i = 0; i < count; ++i) sum[i] += mine[i];
  }
  return sum;
}

TEST(CheckPattern, RanksAndElementsDiffer) {
  std::set<std::vector<float>> seen;
  for (int rank = 0; rank < 8; ++rank) {
    std::vector<float> values(100);
    fill_pattern(view(values), rank);
    seen.insert(values);
    EXPECT_EQ(std::set<float>(values.begin(), values.end()).size(), 5u);
  }
  EXPECT_EQ(seen.size(), 8u);
}

TEST(CheckPattern, FindsEveryWrongElementOfASum) {
  std::vector<float> sum = sum_over(4, 1000);
  const Expected expected{0, 4, 0, 0};
  EXPECT_EQ(count_wrong(view(sum), expected), 0u);
  sum[0] += 1.0f;
  sum[999] = std::nanf("");
  EXPECT_EQ(count_wrong(view(sum), expected), 2u);
  EXPECT_GT(count_wrong(view(sum), {0, 3, 0, 0}), 700u);  // a rank is missing
  EXPECT_GT(count_wrong(view(sum), {0, 4, 1, 0}), 700u);  // shifted by one
}

/// The result of rank 2 of an all-to-all: from each rank the share that begins at element 20.
TEST(CheckPattern, KnowsSharesThatBeginLater) {
  std::vector<float> result;
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<float> sent(30);
    fill_pattern(view(sent), rank);
    result.insert(result.end(), sent.begin() + 20, sent.end());
  }
  EXPECT_EQ(count_wrong(view(result), {0, 1, 20, 10}), 0u);
  EXPECT_GT(count_wrong(view(result), {0, 1, 10, 10}), 10u);  // the share of another rank
  EXPECT_GT(count_wrong(view(result), {0, 1, 0, 10}), 10u);   // as after an all-gather
}

TEST(CheckPattern, KnowsSharesOfRanks) {
  std::vector<float> all(30);
  for (int rank = 0; rank < 3; ++rank) {
    const Tensor share{all.data() + 10 * rank, DType::f32, {10}};
    fill_pattern(share, rank);
  }
  EXPECT_EQ(count_wrong(view(all), {0, 1, 0, 10}), 0u);
  std::swap_ranges(all.begin(), all.begin() + 10, all.begin() + 10);
  EXPECT_GT(count_wrong(view(all), {0, 1, 0, 10}), 5u);
}

TEST(CheckPattern, Bf16HoldsItExactly) {
  std::vector<std::uint16_t> values(100);
  const Tensor tensor{values.data(), DType::bf16, {100}};
  fill_pattern(tensor, 3);
  EXPECT_EQ(count_wrong(tensor, {3, 1, 0, 0}), 0u);
  values[7] ^= 1;
  EXPECT_EQ(count_wrong(tensor, {3, 1, 0, 0}), 1u);
}

TEST(CheckPattern, TheGpuFillsAndCountsTheSame) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "needs a GPU";
  const auto device = make_cuda_device({}, 0);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Buffer buffer = device->allocate(dtype, {5000});
    const Tensor filled = buffer.view(dtype, {5000});
    gpu::fill_pattern(filled, 5);
    std::vector<std::uint8_t> host(filled.bytes());
    device->copy_to_host(host.data(), filled.data, host.size());
    EXPECT_EQ(count_wrong({host.data(), dtype, {5000}}, {5, 1, 0, 0}), 0u);
    EXPECT_EQ(gpu::count_wrong(filled, {5, 1, 0, 0}), 0u);
    host[4] ^= 0x80;
    device->copy_to_device(filled.data, host.data(), host.size());
    EXPECT_EQ(gpu::count_wrong(filled, {5, 1, 0, 0}), count_wrong({host.data(), dtype, {5000}}, {5, 1, 0, 0}));
  }
}

}  // namespace
}  // namespace ddptrain::bench
