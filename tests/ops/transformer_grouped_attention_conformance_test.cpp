#include <cmath>

#include "models/layers/rotary.h"
#include "runtime/ops/cached_attention.h"
#include "runtime/ops/grouped_attention.h"
#include "tests/ops/transformer_conformance.h"

// Rotary positions, and attention to a cache.

namespace ddptrain::tests {
namespace {

constexpr RotaryScaling kLlama3 = {32.0, 1.0, 4.0, 8192};

class GroupedConformanceTest : public TransformerConformanceTest {
 protected:
  void SetUp() override {
    if (GetParam().kind == DeviceKind::cuda) GTEST_SKIP() << "not available on GPUs yet";
    TransformerConformanceTest::SetUp();
  }
};

TEST_P(GroupedConformanceTest, RotaryPositions) {
  const GroupedHeads heads{6, 2, 10};
  const Rotary rotary{10000.0, kLlama3};
  for (const std::int64_t first_position : {0, 1, 100}) {
    compare(describe({first_position}), [&](Bench& bench) -> Outputs {
      const std::vector<double> frequencies = rotary_frequencies(rotary, heads.head_size);
      const Tensor of_pairs = bench.put_master({frequencies.begin(), frequencies.end()}, {heads.head_size / 2});
      const Shape shape{2, 7, heads.columns()};
      const Tensor turned = put(bench, shape, 1);
      const Tensor back = put(bench, shape, 1);
      const std::int64_t* first = first_position > 0 ? bench.put_object(first_position) : nullptr;
      auto& ops = bench.device().get<GroupedAttentionOps>();
      ops.rotate(turned, heads, of_pairs, first, GroupedAttentionOps::Turn::forward);
      ops.rotate(back, heads, of_pairs, first, GroupedAttentionOps::Turn::forward);
      ops.rotate(back, heads, of_pairs, first, GroupedAttentionOps::Turn::back);
      EXPECT_LE(relative_error(bench.take(back), bench.take(put(bench, shape, 1))), 1e-5);
      return {{"turned", bench.take(turned)}};
    });
  }
}

/// Element 1 of a key of size 4 is paired with element 3. A value is left alone.
TEST_P(GroupedConformanceTest, APairTurnsByPositionTimesFrequency) {
  Bench bench(*tested_);
  const Tensor qkv = bench.put({0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0}, {1, 1, 12});
  const Tensor frequencies = bench.put_master({1.0, 0.25}, {2});
  tested_->get<GroupedAttentionOps>().rotate(qkv, {1, 1, 4}, frequencies, bench.put_object(std::int64_t{3}),
                                             GroupedAttentionOps::Turn::forward);
  const Values expected = {0, 0, 0, 0, 0, std::cos(0.75), 0, std::sin(0.75), 0, 1, 0, 0};
  EXPECT_LE(relative_error(bench.take(qkv), expected), GetParam().tolerance);
}

/// In pieces of several sizes, attention to a cache gives what attention gives to all rows at once.
TEST_P(GroupedConformanceTest, AttentionToACacheIsAttentionToAllRows) {
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
      tested_->get<CachedAttentionOps>().attention(bench.put(qkv, {kBatch, rows, heads.columns()}), {heads, true},
                                                   bench.put_object(first), keys, values, out);
      const Values part = bench.take(out);
      piece(part, heads.width(), [&](std::size_t from, std::size_t to) { found[to] = part[from]; });
      first += rows;
    }
    ASSERT_EQ(first, kSequence);
    EXPECT_LE(relative_error(found, expected), GetParam().tolerance);
  }
}

/// The columns of a row: all queries, then all keys, then all values.
TEST_P(GroupedConformanceTest, HeadsMayLieKindByKind) {
  const GroupedHeads heads{2, 2, 3};
  const QkvColumns kinds{heads, false};
  const QkvColumns groups{heads, true};
  Bench bench(*tested_);
  const auto attend = [&](const QkvColumns& columns) {
    Values qkv(static_cast<std::size_t>(4 * heads.columns()));
    const Values random = random_values(std::ssize(qkv), 7);
    std::size_t next = 0;
    for (std::int64_t row = 0; row < 4; ++row) {
      for (std::int64_t head = 0; head < 2; ++head) {
        for (const std::int64_t first : {columns.query(head), columns.key(head), columns.value(head)}) {
          for (std::int64_t i = 0; i < 3; ++i) {
            qkv[static_cast<std::size_t>(row * heads.columns() + first + i)] = random[next++];
          }
        }
      }
    }
    const Tensor out = bench.poisoned({1, 4, heads.width()});
    tested_->get<CachedAttentionOps>().attention(bench.put(qkv, {1, 4, heads.columns()}), columns,
                                                 bench.put_object(std::int64_t{0}), bench.poisoned({1, 4, 6}),
                                                 bench.poisoned({1, 4, 6}), out);
    return bench.take(out);
  };
  EXPECT_EQ(attend(kinds), attend(groups));
}

INSTANTIATE_TEST_SUITE_P(Devices, GroupedConformanceTest, ::testing::ValuesIn(device_cases()),
                         [](const auto& info) { return info.param.name; });

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
