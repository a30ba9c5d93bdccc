#include <cmath>

#include "models/layers/rotary.h"
#include "runtime/ops/attention.h"
#include "runtime/ops/cached_attention.h"
#include "runtime/ops/grouped_attention.h"
#include "tests/ops/transformer_conformance.h"

// Attention with grouped heads, what is done to heads before it, and attention to a cache.

namespace ddptrain::tests {
namespace {

constexpr RotaryScaling kLlama3 = {32.0, 1.0, 4.0, 8192};

struct GroupedCase {
  std::int64_t batch, sequence;
  GroupedHeads heads;
};
/// With and without cuDNN in bf16, as attention_cases(); groups of one head, of all heads, and of some.
std::vector<GroupedCase> grouped_cases() {
  std::vector<GroupedCase> cases = {
      {2, 1, {4, 2, 16}},    {3, 7, {6, 2, 5}},     {2, 33, {6, 1, 32}},   {2, 64, {14, 2, 64}},
      {3, 100, {9, 3, 72}},  {5, 80, {12, 2, 128}}, {2, 128, {14, 2, 64}}, {1, 256, {12, 2, 128}},
      {2, 200, {4, 2, 40}},  {2, 96, {4, 2, 160}},  {1, 130, {2, 1, 256}}, {1, 1024, {4, 2, 64}},
      {17, 256, {8, 8, 64}}, {20, 256, {8, 2, 64}}, {2, 128, {6, 2, 96}},  {12, 128, {12, 4, 128}}};
  std::erase_if(cases, [](const GroupedCase& c) { return c.heads.head_size > largest_head(); });
  return cases;
}

/// The queries, keys and values of rows that are kind by kind.
Outputs parts_of(const std::string& name, const GroupedHeads& heads, const Values& rows) {
  Outputs parts = {{name + " q", {}}, {name + " k", {}}, {name + " v", {}}};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t column = static_cast<std::int64_t>(i) % heads.columns();
    const int part = column < heads.key_column(0) ? 0 : column < heads.value_column(0) ? 1 : 2;
    parts[static_cast<std::size_t>(part)].second.push_back(rows[i]);
  }
  return parts;
}

TEST_P(TransformerConformanceTest, GroupedAttention) {
  for (const GroupedCase& c : grouped_cases()) {
    const GroupedHeads& heads = c.heads;
    const std::string what = describe({c.batch, c.sequence, heads.heads, heads.key_heads, heads.head_size});
    compare(what, [&](Bench& bench) -> Outputs {
      auto& ops = bench.device().get<GroupedAttentionOps>();
      const Shape shape{c.batch, c.sequence, heads.columns()};
      const Tensor qkv = put(bench, shape, 1, 2.0);
      const Tensor out = bench.poisoned({c.batch, c.sequence, heads.width()});
      const Tensor statistics = put_statistics(bench, {c.batch, heads.heads, c.sequence});
      const Tensor dqkv = bench.poisoned(shape);
      ops.attention(qkv, heads, out, statistics);
      ops.attention_backward(qkv, heads, out, statistics, put(bench, out.shape, 2), dqkv);
      Outputs outputs = parts_of("gradient of", heads, bench.take(dqkv));
      if (c.sequence == 1) outputs = {outputs.back()};  // the others are 0
      outputs.emplace_back("out", bench.take(out));
      return outputs;
    });
  }
}

/// Groups of one head are what AttentionOps computes.
TEST_P(TransformerConformanceTest, GroupsOfOneHeadAreAttention) {
  constexpr GroupedHeads kHeads{3, 3, 64};
  for (const std::int64_t sequence : {24, 128}) {
    Bench bench(*tested_);
    const Shape shape{2, sequence, kHeads.columns()};
    const Tensor qkv = put(bench, shape, 1, 2.0);
    const Tensor dy = put(bench, {2, sequence, kHeads.width()}, 2);
    const auto run = [&](auto&& forward, auto&& backward) {
      const Tensor out = bench.poisoned(dy.shape);
      const Tensor statistics = put_statistics(bench, {2, 3, sequence});
      const Tensor dqkv = bench.poisoned(shape);
      forward(out, statistics);
      backward(out, statistics, dqkv);
      return std::pair{bench.take(out), bench.take(dqkv)};
    };
    auto& grouped = tested_->get<GroupedAttentionOps>();
    auto& single = tested_->get<AttentionOps>();
    const auto of_groups =
        run([&](const Tensor& out, const Tensor& statistics) { grouped.attention(qkv, kHeads, out, statistics); },
            [&](const Tensor& out, const Tensor& statistics, const Tensor& dqkv) {
              grouped.attention_backward(qkv, kHeads, out, statistics, dy, dqkv);
            });
    const auto of_heads =
        run([&](const Tensor& out, const Tensor& statistics) { single.attention(qkv, 3, out, statistics); },
            [&](const Tensor& out, const Tensor& statistics, const Tensor& dqkv) {
              single.attention_backward(qkv, 3, out, statistics, dy, dqkv);
            });
    EXPECT_LE(relative_error(of_groups.first, of_heads.first), GetParam().tolerance) << sequence;
    EXPECT_LE(relative_error(of_groups.second, of_heads.second), GetParam().tolerance) << sequence;
  }
}

TEST_P(TransformerConformanceTest, RotaryPositions) {
  const Rotary rotary{10000.0, kLlama3};
  for (const GroupedHeads& heads : {GroupedHeads{6, 2, 10}, {14, 2, 64}, {3, 3, 32}, {5, 1, 128}, {4, 2, 72}}) {
    for (const std::int64_t first_position : {0, 1, 100}) {
      const Shape shape{2, 7, heads.columns()};
      compare(describe(shape, fmt::format("from {}", first_position)), [&](Bench& bench) -> Outputs {
        const std::vector<double> frequencies = rotary_frequencies(rotary, heads.head_size);
        const Tensor of_pairs = bench.put_master({frequencies.begin(), frequencies.end()}, {heads.head_size / 2});
        const Tensor turned = put(bench, shape, 1);
        const Tensor back = put(bench, shape, 1);
        const Tensor d_turned = put(bench, shape, 2);
        const std::int64_t* first = first_position > 0 ? bench.put_object(first_position) : nullptr;
        auto& ops = bench.device().get<GroupedAttentionOps>();
        ops.rotate(turned, heads, of_pairs, first, GroupedAttentionOps::Turn::forward);
        ops.rotate(back, heads, of_pairs, first, GroupedAttentionOps::Turn::forward);
        ops.rotate(back, heads, of_pairs, first, GroupedAttentionOps::Turn::back);
        ops.rotate(d_turned, heads, of_pairs, first, GroupedAttentionOps::Turn::back);
        EXPECT_LE(relative_error(bench.take(back), bench.take(put(bench, shape, 1))), GetParam().tolerance);
        return {{"turned", bench.take(turned)}, {"gradient", bench.take(d_turned)}};
      });
    }
  }
}

/// A thread block of a GPU takes the same position of several samples if there are thousands of rows.
TEST_P(TransformerConformanceTest, SamplesTurnTogetherAsAlone) {
  constexpr std::int64_t kBatch = 5, kSequence = 2048;
  for (const GroupedHeads& heads : {GroupedHeads{2, 1, 16}, {2, 1, 6}}) {
    Bench bench(*tested_);
    const Tensor frequencies = put(bench, {heads.head_size / 2}, 3);
    const Tensor of_pairs = bench.put_master(bench.take(frequencies), frequencies.shape);
    auto& ops = tested_->get<GroupedAttentionOps>();
    for (const auto turn : {GroupedAttentionOps::Turn::forward, GroupedAttentionOps::Turn::back}) {
      const Shape shape{kBatch, kSequence, heads.columns()};
      const Tensor together = put(bench, shape, 1);
      const Tensor alone = put(bench, shape, 1);
      ops.rotate(together, heads, of_pairs, nullptr, turn);
      for (std::int64_t i = 0; i < kBatch; ++i) {
        Tensor sample = alone.stretch(i * alone.size() / kBatch, alone.size() / kBatch);
        sample.shape = {1, kSequence, heads.columns()};
        ops.rotate(sample, heads, of_pairs, nullptr, turn);
      }
      EXPECT_EQ(bench.take(together), bench.take(alone)) << heads.head_size;
    }
  }
}

/// Element 1 of a key of size 4 is paired with element 3. A value is left alone.
TEST_P(TransformerConformanceTest, APairTurnsByPositionTimesFrequency) {
  Bench bench(*tested_);
  const Tensor qkv = bench.put({0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0}, {1, 1, 12});
  const Tensor frequencies = bench.put_master({1.0, 0.25}, {2});
  tested_->get<GroupedAttentionOps>().rotate(qkv, {1, 1, 4}, frequencies, bench.put_object(std::int64_t{3}),
                                             GroupedAttentionOps::Turn::forward);
  const Values expected = {0, 0, 0, 0, 0, std::cos(0.75), 0, std::sin(0.75), 0, 1, 0, 0};
  EXPECT_LE(relative_error(bench.take(qkv), expected), GetParam().tolerance);
}

/// From groups of two queries, a key and a value to all queries, all keys, all values, and back.
TEST_P(TransformerConformanceTest, RotationOrdersHeadsByKind) {
  for (const std::int64_t size : {1, 3, 8, 64}) {
    const GroupedHeads heads{4, 2, size};
    const auto row_of = [&](const std::vector<int>& order) {
      Values row;
      for (int window_row = 0; window_row < 3; ++window_row) {
        for (const int head : order) {
          for (std::int64_t i = 0; i < size; ++i) row.push_back(10 * window_row + head + static_cast<double>(i) / 64);
        }
      }
      return row;
    };
    Bench bench(*tested_);
    const Values by_group = bench.rounded(row_of({0, 1, 4, 6, 2, 3, 5, 7}));
    const Values by_kind = bench.rounded(row_of({0, 1, 2, 3, 4, 5, 6, 7}));
    const Tensor qkv = bench.put(by_group, {1, 3, heads.columns()});
    auto& ops = tested_->get<GroupedAttentionOps>();
    ops.rotate(qkv, heads, Tensor{}, nullptr, GroupedAttentionOps::Turn::forward);
    EXPECT_EQ(bench.take(qkv), by_kind) << size;
    ops.rotate(qkv, heads, Tensor{}, nullptr, GroupedAttentionOps::Turn::back);
    EXPECT_EQ(bench.take(qkv), by_group) << size;
  }
}

TEST_P(TransformerConformanceTest, NormsOfHeads) {
  for (const GroupedHeads& heads : {GroupedHeads{6, 2, 5}, {3, 3, 8}, {14, 2, 64}, {16, 8, 128}, {2, 1, 80}}) {
    for (const GradientCase gradients : kGradientCases) {
      const Shape shape{3, 21, heads.columns()};
      compare(describe(shape, gradients), [&](Bench& bench) -> Outputs {
        auto& ops = bench.device().get<GroupedAttentionOps>();
        const Tensor qkv = put(bench, shape, 1, 2.0);
        const Tensor query_weight = put(bench, {heads.head_size}, 2);
        const Tensor key_weight = put(bench, {heads.head_size}, 3);
        const Tensor y = bench.poisoned(shape);
        const Tensor statistics = put_statistics(bench, {63, heads.heads + heads.key_heads});
        const Tensor dqkv = put(bench, shape, 4);
        const Tensor dquery_weight = gradient(bench, gradients, {heads.head_size});
        const Tensor dkey_weight = gradient(bench, gradients, {heads.head_size});
        ops.normalise(qkv, heads, query_weight, key_weight, kEpsilon, y, statistics);
        ops.normalise_backward(qkv, heads, query_weight, key_weight, statistics, dqkv, dquery_weight, dkey_weight,
                               gradients.accumulate);
        return {{"y", bench.take(y)},
                {"statistics", bench.take(statistics)},
                {"dqkv", bench.take(dqkv)},
                {"dquery_weight", bench.take(dquery_weight)},
                {"dkey_weight", bench.take(dkey_weight)}};
      });
    }
  }
}

/// In pieces of several sizes, attention to a cache gives what attention gives to all rows at once.
TEST_P(TransformerConformanceTest, AttentionToACacheIsAttentionToAllRows) {
  if (GetParam().kind == DeviceKind::cuda) GTEST_SKIP() << "not available on GPUs yet";
  constexpr std::int64_t kBatch = 2, kSequence = 75, kCapacity = 80;
  for (const GroupedHeads& heads : {GroupedHeads{6, 2, 8}, GroupedHeads{3, 3, 5}}) {
    Bench bench(*tested_);
    const Values all = random_values(kBatch * kSequence * heads.columns(), 1, -2.0, 2.0);
    const Tensor whole = bench.poisoned({kBatch, kSequence, heads.width()});
    tested_->get<GroupedAttentionOps>().attention(bench.put(all, {kBatch, kSequence, heads.columns()}), heads, whole,
                                                  put_statistics(bench, {kBatch, heads.heads, kSequence}));
    const Values expected = bench.take(whole);
    const Shape cache{kBatch, kCapacity, heads.key_heads * heads.head_size};
    const Tensor keys = bench.poisoned(cache);
    const Tensor values = bench.poisoned(cache);
    Values found(expected.size());
    std::int64_t first = 0;
    for (const std::int64_t rows : {40, 1, 1, 32, 1}) {
      const auto piece = [&](const Values& of, std::int64_t columns, const auto& visit) {
        for (std::int64_t window = 0; window < kBatch; ++window) {
          for (std::int64_t i = 0; i < rows * columns; ++i) {
            visit(static_cast<std::size_t>(window * rows * columns + i),
                  static_cast<std::size_t>((window * kSequence + first) * columns + i));
          }
        }
        EXPECT_FALSE(of.empty());
      };
      Values qkv(static_cast<std::size_t>(kBatch * rows * heads.columns()));
      piece(all, heads.columns(), [&](std::size_t to, std::size_t from) { qkv[to] = all[from]; });
      const Tensor out = bench.poisoned({kBatch, rows, heads.width()});
      tested_->get<CachedAttentionOps>().attention(bench.put(qkv, {kBatch, rows, heads.columns()}), heads,
                                                   bench.put_object(first), keys, values, out);
      const Values part = bench.take(out);
      piece(part, heads.width(), [&](std::size_t from, std::size_t to) { found[to] = part[from]; });
      first += rows;
    }
    ASSERT_EQ(first, kSequence);
    EXPECT_LE(relative_error(found, expected), GetParam().tolerance);
  }
}

/// transformers' formula (modeling_rope_utils.py, llama3), for a head of 64 with Llama 3.2's settings.
TEST(Rotary, Llama3ScalesSlowPairs) {
  const std::vector<double> plain = rotary_frequencies({500000.0, {}}, 64);
  const std::vector<double> scaled = rotary_frequencies({500000.0, kLlama3}, 64);
  ASSERT_EQ(plain.size(), 32u);
  EXPECT_DOUBLE_EQ(plain[0], 1.0);
  EXPECT_DOUBLE_EQ(plain[16], std::pow(500000.0, -0.5));
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double wavelength = 2.0 * M_PI / plain[i];
    const double smooth = (8192.0 / wavelength - 1.0) / 3.0;
    double expected = (1.0 - smooth) * plain[i] / 32.0 + smooth * plain[i];
    if (wavelength < 8192.0 / 4.0) expected = plain[i];
    if (wavelength > 8192.0) expected = plain[i] / 32.0;
    EXPECT_NEAR(scaled[i], expected, 1e-12 * expected) << i;
  }
  EXPECT_EQ(scaled.front(), plain.front());
  EXPECT_LT(scaled[16], plain[16]);
  EXPECT_EQ(scaled.back(), plain.back() / 32.0);
}

}  // namespace
}  // namespace ddptrain::tests
