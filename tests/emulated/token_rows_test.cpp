#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulated/device.h"
using std::isfinite;  // NOLINT: as kernels call it
// The kernel, after what stands for CUDA.
#include "runtime/ops/cuda/loss/resident_rows.cuh"

namespace ddptrain::cuda::token_rows {

alignas(1024) char memory[4 * 100 * 1024];  // NOLINT: the shared memory of a cluster

namespace {

constexpr float kScale = 0.125f, kInfinity = std::numeric_limits<float>::infinity();

struct Targets {
  const std::vector<std::uint32_t>* targets;

  std::uint32_t target(std::uint32_t row) const { return (*targets)[row]; }
};

/// Rows of logits. Some of the largest are equal, and targets are among them.
struct Rows {
  std::uint32_t rows, columns, vocabulary;
  std::vector<bf16> logits;
  std::vector<std::uint32_t> targets;

  Rows(std::uint32_t count, std::uint32_t width, std::uint32_t counted)
      : rows(count), columns(width), vocabulary(counted), logits(std::size_t{count} * width), targets(count) {
    std::mt19937 random(columns);
    for (std::uint32_t row = 0; row < rows; ++row) {
      targets[row] = row == 1 ? vocabulary - 1 : static_cast<std::uint32_t>(random() % vocabulary);
      for (std::uint32_t c = 0; c < columns; ++c) {
        const float x = c >= vocabulary ? (c % 2 == 0 ? 100.0f : NAN) : (static_cast<float>(random() % 49) - 24) / 8;
        set(row, c, x);
      }
      if (row % 3 > 0) set(row, targets[row], row % 3 == 1 ? 3.5f : 3.0f);
    }
  }
  void set(std::uint32_t row, std::uint32_t column, float x) { logits[place(row, column)] = __float2bfloat16_rn(x); }
  float at(std::uint32_t row, std::uint32_t column) const { return __bfloat162float(logits[place(row, column)]); }
  std::size_t place(std::uint32_t row, std::uint32_t column) const { return std::size_t{row} * columns + column; }
};

struct Outcome {
  std::vector<bf16> gradient;
  std::vector<MetricPartial> metrics;

  bool operator==(const Outcome& other) const {
    const auto same = [](const MetricPartial& a, const MetricPartial& b) {
      return a.loss == b.loss && a.correct == b.correct;
    };
    return std::equal(metrics.begin(), metrics.end(), other.metrics.begin(), other.metrics.end(), same) &&
           gradient.size() == other.gradient.size() &&
           std::memcmp(gradient.data(), other.gradient.data(), gradient.size() * sizeof(bf16)) == 0;
  }
};

enum class Output { apart, in_place, none };

template <int kThreads, int kCluster, bool kBackwards = false>
Outcome run(const Rows& rows, Output output, unsigned seed) {
  const std::uint32_t packs = rows.columns / kPack;
  const std::size_t used = bytes_before_row(kThreads, kCluster) + (packs + kCluster - 1) / kCluster * sizeof(uint4);
  const std::size_t bytes = (used + 1024) / 1024 * 1024 + 1024;
  EXPECT_LE(bytes * kCluster, sizeof(memory));
  std::vector<bf16> logits(rows.logits.size(), __float2bfloat16_rn(NAN)), other = logits;
  Outcome outcome{{}, std::vector<MetricPartial>(rows.rows + 1, MetricPartial{-1.0, 77})};
  bf16* const to = output == Output::none ? nullptr : output == Output::in_place ? logits.data() : other.data();
  const Problem<bf16> problem{logits.data(),   to,    outcome.metrics.data(), rows.rows, rows.columns,
                              rows.vocabulary, kScale};
  for (std::uint32_t row = 0; row < rows.rows; ++row) {
    blockIdx.x = static_cast<int>(row) * kCluster;
    std::fill_n(memory, bytes * kCluster, '\xFF');
    emulated::Block::Settings settings{kThreads, seed + row, row % 2 == 0, memory};
    if (row == 0) settings.predecessor = [&] { std::ranges::copy(rows.logits, logits.begin()); };
    settings.blocks = kCluster;
    settings.shared_bytes = bytes;
    emulated::Block(settings).run(
        [&] { resident_rows_kernel<kThreads, kCluster, kBackwards>(problem, Targets{&rows.targets}); });
    for (int block = 0; block < kCluster; ++block) {
      const char* const begin = memory + block * bytes;
      EXPECT_TRUE(std::all_of(begin + used, begin + bytes, [](char byte) { return byte == '\xFF'; }));
    }
  }
  EXPECT_EQ(outcome.metrics.back().correct, 77u);
  outcome.metrics.pop_back();
  if (output != Output::in_place) {
    EXPECT_EQ(std::memcmp(logits.data(), rows.logits.data(), logits.size() * sizeof(bf16)), 0);
  }
  if (to != nullptr) outcome.gradient = output == Output::in_place ? logits : other;
  return outcome;
}

void expect_row(const Rows& rows, std::uint32_t row, const Outcome& outcome) {
  std::uint32_t best = 0;
  for (std::uint32_t c = 0; c < rows.vocabulary; ++c) best = rows.at(row, c) > rows.at(row, best) ? c : best;
  const double largest = rows.at(row, best);
  double total = 0.0, worst = 0.0;
  for (std::uint32_t c = 0; c < rows.vocabulary; ++c) total += std::exp(rows.at(row, c) - largest);
  const std::uint32_t target = rows.targets[row];
  for (std::uint32_t c = 0; c < rows.columns && !outcome.gradient.empty(); ++c) {
    const bool counts = c < rows.vocabulary;
    const double softmax = counts ? std::exp(rows.at(row, c) - largest) / total : 0.0;
    const double expected = kScale * (softmax - (c == target ? 1.0 : 0.0));
    const double apart = std::abs(__bfloat162float(outcome.gradient[rows.place(row, c)]) - expected);
    worst = apart / (std::abs(expected) + 1e-12) <= worst ? worst : apart / (std::abs(expected) + 1e-12);
  }
  EXPECT_LE(worst, 0.006);
  EXPECT_NEAR(outcome.metrics[row].loss, std::log(total) + largest - rows.at(row, target), 2e-5);
  EXPECT_EQ(outcome.metrics[row].correct, best == target ? 1u : 0u);
}

template <int kThreads, int kCluster, bool kBackwards = false>
void check(const Rows& rows) {
  SCOPED_TRACE(std::to_string(rows.rows) + " x " + std::to_string(rows.columns));
  unsigned seed = rows.columns;
  std::vector<Outcome> outcomes;
  for (const Output output : {Output::apart, Output::in_place, Output::none}) {
    outcomes.push_back(run<kThreads, kCluster, kBackwards>(rows, output, seed += 100));
    for (std::uint32_t row = 0; row < rows.rows; ++row) expect_row(rows, row, outcomes.back());
  }
  EXPECT_TRUE(outcomes[0] == outcomes[1]) << "the bits of a row depend on the order of the warps";
}

TEST(EmulatedTokenRowsTest, LossAndGradientEqualDoublePrecision) {
  check<64, 1>({7, 1504, 1497});
  check<96, 1, true>({5, 1504, 1504});
  check<64, 2>({7, 1512, 1505});
  check<64, 4>({7, 2088, 2000});
  check<64, 4, true>({7, 1504, 1097});  // the last block has padding alone
  check<64, 8>({7, 4504, 4497});
}

/// The plans of the mini GPT, GPT-2 and Qwen on an H200.
TEST(EmulatedTokenRowsTest, RowsOfRealVocabularies) {
  check<512, 1>({2, 20096, 20000});
  check<512, 1>({1, 50304, 50257});
  check<512, 4>({1, 151936, 151936});
}

/// Equal logits, in the same thread and in other blocks; and logits whose exponentials are equal in f16 alone.
TEST(EmulatedTokenRowsTest, TheFirstOfTheLargestLogitsIsTheHit) {
  Rows rows(8, 2048, 2048);
  const float largest = 0x1.04p-7f, smaller = 0x1.02p-7f;
  const auto change = [&](std::uint32_t row, std::uint32_t target, std::uint32_t other, float x) {
    for (std::uint32_t c = 0; c < rows.columns; ++c) rows.set(row, c, -1.0f);
    rows.targets[row] = target;
    rows.set(row, target, largest);
    rows.set(row, other, x);
  };
  change(0, 1003, 1002, largest);
  change(1, 1003, 1002, smaller);
  change(2, 1003, 1004, largest);
  change(3, 1003, 2, largest);
  change(4, 1003, 2000, largest);
  change(5, 1500, 900, largest);
  change(6, 0, 2047, largest);
  change(7, 2047, 0, largest);
  ASSERT_GT(rows.at(1, 1003), rows.at(1, 1002));
  check<64, 1>(rows);
  check<64, 4>(rows);
}

TEST(EmulatedTokenRowsTest, OnlyRowsWhoseLossIsNotFiniteHaveNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::uint32_t kTarget = 700, kLast = 1496;
  for (const auto& [column, bad] : std::vector<std::pair<std::uint32_t, float>>{
           {kTarget, kInfinity}, {kTarget, -kInfinity}, {kTarget, nan}, {1, kInfinity}, {1, nan}, {kLast, nan}}) {
    SCOPED_TRACE(std::to_string(bad) + " in column " + std::to_string(column));
    Rows rows(3, 1504, kLast + 1);
    rows.targets[1] = kTarget;
    rows.set(1, column, bad);
    for (const Outcome& outcome : {run<64, 1>(rows, Output::in_place, 1), run<64, 4>(rows, Output::apart, 2)}) {
      EXPECT_FALSE(std::isfinite(outcome.metrics[1].loss));
      for (std::uint32_t c = 0; c < rows.vocabulary; ++c) {
        ASSERT_TRUE(std::isnan(__bfloat162float(outcome.gradient[rows.place(1, c)]))) << c;
      }
      for (const std::uint32_t row : {0u, 2u}) expect_row(rows, row, outcome);
    }
  }
}

/// A column of minus infinity is one that cannot come.
TEST(EmulatedTokenRowsTest, MaskedColumnsTakeNoPart) {
  Rows rows(3, 1504, 1504);
  for (std::uint32_t row = 0; row < rows.rows; ++row) {
    for (std::uint32_t c = 0; c < rows.columns; ++c) {
      if (c != rows.targets[row] && (c % 5 == 4 || c > 300)) rows.set(row, c, -kInfinity);
    }
  }
  check<64, 1>(rows);
  check<64, 4>(rows);
}

/// The bits of a row are the same wherever it is: pieces and ranks have other rows with it.
TEST(EmulatedTokenRowsTest, ARowDoesNotDependOnOthers) {
  const Rows rows(5, 1504, 1497);
  Rows last(1, 1504, 1497);
  last.targets[0] = rows.targets[4];
  std::copy_n(rows.logits.begin() + 4 * 1504, 1504, last.logits.begin());
  const Outcome all = run<64, 2>(rows, Output::apart, 3), alone = run<64, 2>(last, Output::apart, 4);
  EXPECT_EQ(all.metrics[4].loss, alone.metrics[0].loss);
  EXPECT_EQ(std::memcmp(&all.gradient[rows.place(4, 0)], alone.gradient.data(), 1504 * sizeof(bf16)), 0);
}

TEST(EmulatedTokenRowsTest, AMultiprocessorHasTwoBlocks) {
  const auto plan = [](std::uint32_t columns, std::size_t kib) { return plan_resident_rows(columns, kib * 1024); };
  constexpr std::size_t kHopper = 227, kSmall = 99;
  EXPECT_EQ(plan(16384, kHopper), std::nullopt);
  EXPECT_EQ(plan(20096, kHopper), (ResidentPlan{1, 256 + 40192}));
  EXPECT_EQ(plan(50304, kHopper), (ResidentPlan{1, 256 + 100608}));
  EXPECT_EQ(plan(50257, kHopper), std::nullopt);
  EXPECT_EQ(plan(128256, kHopper), (ResidentPlan{4, 640 + 64128}));
  EXPECT_EQ(plan(151936, kHopper), (ResidentPlan{4, 640 + 75968}));
  EXPECT_EQ(plan(256000, kHopper), (ResidentPlan{8, 1152 + 64000}));
  EXPECT_EQ(plan(1 << 20, kHopper), std::nullopt);
  EXPECT_EQ(plan(50304, kSmall)->cluster, 4);
  for (std::uint32_t columns = 16392; columns < 500'000; columns += 8) {
    for (const std::size_t kib : {kHopper, std::size_t{163}, kSmall}) {
      const auto found = plan(columns, kib);
      if (!found) continue;
      EXPECT_LE(2 * (found->bytes + 1024), (kib + 1) * 1024);
      const std::uint32_t packs = columns / kPack, cluster = static_cast<std::uint32_t>(found->cluster);
      ASSERT_LT((packs + cluster - 1) / cluster * (cluster - 1), packs) << "a block without columns";
    }
  }
}

}  // namespace
}  // namespace ddptrain::cuda::token_rows
