#include "runtime/ops/cached_attention.h"
#include "tests/ops/transformer_conformance.h"

// Attention to a cache on every device, against the CPU in double precision.

namespace ddptrain::tests {
namespace {

struct CachedCase {
  GroupedHeads heads;
  std::int64_t rows, capacity, first_position;
};

const std::vector<CachedCase> kCachedCases = {
    {{6, 2, 8}, 1, 20, 0},        {{6, 2, 8}, 3, 20, 17},      {{3, 3, 5}, 1, 64, 63},      {{14, 2, 64}, 1, 65, 64},
    {{14, 2, 64}, 2, 200, 130},   {{12, 2, 128}, 1, 500, 499}, {{28, 4, 128}, 40, 100, 31}, {{12, 12, 64}, 1, 300, 299},
    {{20, 1, 64}, 1, 150, 100},   {{4, 2, 65}, 1, 200, 127},   {{2, 1, 256}, 1, 100, 99},   {{2, 1, 200}, 9, 100, 60},
    {{12, 2, 128}, 1, 5000, 4999}};

TEST_P(TransformerConformanceTest, CachedAttention) {
  for (const CachedCase& c : kCachedCases) {
    constexpr std::int64_t kTexts = 2;
    const Shape cache{kTexts, c.capacity, c.heads.key_heads * c.heads.head_size};
    compare(describe({c.heads.heads, c.heads.key_heads, c.heads.head_size, c.rows, c.capacity}), [&](Bench& bench) {
      const Tensor keys = put(bench, cache, 2, 2.0), values = put(bench, cache, 3);
      const Tensor out = bench.poisoned({kTexts, c.rows, c.heads.width()});
      bench.device().get<CachedAttentionOps>().attention(put(bench, {kTexts, c.rows, c.heads.columns()}, 1, 2.0),
                                                         c.heads, bench.put_object(c.first_position), keys, values,
                                                         out);
      return Outputs{{"out", bench.take(out)}, {"keys", bench.take(keys)}, {"values", bench.take(values)}};
    });
  }
}

/// Also heads that GPUs turn while they read them.
TEST_P(TransformerConformanceTest, RotateAndAttend) {
  for (const CachedCase& c : kCachedCases) {
    if (c.heads.head_size % 2 != 0) continue;
    constexpr std::int64_t kTexts = 2;
    const Shape cache{kTexts, c.capacity, c.heads.key_heads * c.heads.head_size};
    for (const bool turns : {true, false}) {
      compare(describe({c.heads.heads, c.heads.key_heads, c.heads.head_size, c.rows, c.capacity}), [&](Bench& bench) {
        const Tensor keys = put(bench, cache, 2, 2.0), values = put(bench, cache, 3);
        const Tensor out = bench.poisoned({kTexts, c.rows, c.heads.width()});
        Values frequencies;
        for (std::int64_t i = 0; i < c.heads.head_size / 2; ++i) frequencies.push_back(std::exp2(-i));
        const Tensor put_frequencies = bench.put_master(frequencies, {std::ssize(frequencies)});
        bench.device().get<CachedAttentionOps>().rotate_and_attend(
            put(bench, {kTexts, c.rows, c.heads.columns()}, 1, 2.0), c.heads, turns ? put_frequencies : Tensor{},
            bench.put_object(c.first_position), keys, values, out);
        return Outputs{{"out", bench.take(out)}, {"keys", bench.take(keys)}, {"values", bench.take(values)}};
      });
    }
  }
}

/// What lies behind the last row is not read.
TEST_P(TransformerConformanceTest, CachedAttentionOfTheFirstRowsNeedsNoCache) {
  const GroupedHeads heads{4, 2, 64};
  const Shape cache{1, 300, heads.key_heads * heads.head_size};
  Bench bench(*tested_);
  const Tensor keys = bench.poisoned(cache), values = bench.poisoned(cache);
  for (const std::int64_t row : {0, 1, 2}) {
    const Tensor out = bench.poisoned({1, 1, heads.width()});
    tested_->get<CachedAttentionOps>().attention(put(bench, {1, 1, heads.columns()}, 1), heads, bench.put_object(row),
                                                 keys, values, out);
    for (const double value : bench.take(out)) ASSERT_FALSE(std::isnan(value)) << row;
  }
}

}  // namespace
}  // namespace ddptrain::tests
