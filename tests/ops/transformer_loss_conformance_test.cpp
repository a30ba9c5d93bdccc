#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/ops/loss.h"
#include "tests/ops/token_batches.h"
#include "tests/ops/transformer_conformance.h"

namespace ddptrain::tests {
namespace {

struct LossCase {
  std::int64_t rows, columns, vocabulary, first;
};
/// Also around the sizes at which a kernel keeps another number of exponentials or none, or a row takes more thread
/// blocks, and columns that no pack of 16 bytes divides.
const std::vector<LossCase> kLossCases = {
    {1, 2, 2, 0},           {5, 7, 6, 3},         {33, 96, 96, 0},      {40, 128, 100, 5},      {9, 20096, 20000, 1},
    {3, 50304, 50257, 2},   {2, 60000, 60000, 0}, {2, 16384, 16381, 0}, {2, 16392, 16385, 1},   {2, 20480, 20480, 0},
    {2, 20488, 20481, 0},   {2, 32776, 32769, 0}, {2, 57344, 57343, 2}, {2, 57352, 57345, 0},   {2, 50257, 50257, 3},
    {2, 152064, 151936, 1}, {2, 57728, 57721, 0}, {2, 57736, 57729, 1}, {1, 115336, 115329, 0}, {2, 256000, 255990, 2}};

/// Logits are exact in every precision and often tie, so that hits are well defined.
TEST_P(TransformerConformanceTest, TokenCrossEntropy) {
  for (const LossCase& c : kLossCases) {
    const Shape shape{c.rows, c.columns};
    const auto run = [&](Bench& bench, bool in_place) -> Loss {
      Values values = random_eighths(c.rows * c.columns, 1, 3.0);
      for (std::size_t i = 0; i < values.size(); ++i) {  // whatever stands in the padding
        if (static_cast<std::int64_t>(i) % c.columns >= c.vocabulary) values[i] = i % 2 == 0 ? 100.0 : std::nan("");
      }
      const TokenBatch batch = random_tokens(bench, 8, 6, c.vocabulary);
      const std::vector<std::uint32_t> text = random_text(batch.source.window_count * 6 + 1, c.vocabulary);
      for (std::int64_t row = 0; row < c.rows; ++row) {  // misses, hits, and ties with other columns
        const auto place = static_cast<std::uint32_t>(c.first + row);
        const std::uint32_t window = BatchRows(batch.order, std::uint64_t{4})[place / 6];
        const std::int64_t target = text[window * 6 + place % 6 + 1];
        if (row % 3 > 0) values[static_cast<std::size_t>(row * c.columns + target)] = row % 3 == 1 ? 3.0 : 3.5;
      }
      const Tensor logits = bench.put(values, shape);
      const Tensor dlogits = in_place ? logits : bench.poisoned(shape);
      auto* sums = bench.put_object(MetricSums{1.5, 2, 3});
      bench.device().get<LossOps>().token_cross_entropy(logits, batch, c.first, c.vocabulary, 0.125f, dlogits, sums);
      bench.device().get<LossOps>().token_cross_entropy(bench.put(values, shape), batch, c.first, c.vocabulary, 0.0f,
                                                        Tensor{}, sums);
      return {bench.take(dlogits), bench.take_object(sums)};
    };
    for (const bool in_place : {false, true}) {
      if (c.rows + c.first > 48) continue;
      const Values out = compare_loss(describe(shape), [&](Bench& bench) { return run(bench, in_place); }).gradient;
      for (std::size_t i = 0; i < out.size(); ++i) {
        const bool padding = static_cast<std::int64_t>(i) % c.columns >= c.vocabulary;
        ASSERT_TRUE(!padding || out[i] == 0.0) << describe(shape);
      }
    }
  }
}

/// Of equal logits the first, and the two zeros are equal.
TEST_P(TransformerConformanceTest, LikeliestToken) {
  Bench bench(*tested_);
  const auto likeliest = [&](const Values& logits) {
    auto* token = bench.put_object(LikeliestToken{77, 77});
    bench.device().get<LossOps>().likeliest_token(bench.put(logits, {std::ssize(logits)}), token);
    return bench.take_object(token);
  };
  for (const std::int64_t vocabulary : {1, 7, 8, 1000, 8192, 50257, 151936}) {
    Values logits = random_eighths(vocabulary, 1, 3.0);
    for (double& logit : logits) logit -= 5.0;  // all are negative
    const auto expected = std::ranges::max_element(logits) - logits.begin();
    EXPECT_EQ(likeliest(logits).token, expected) << vocabulary;
    EXPECT_EQ(likeliest(logits).all_finite, 1u) << vocabulary;
    const auto last = static_cast<std::size_t>(vocabulary - 1);
    logits[last] = 4.0;
    EXPECT_EQ(likeliest(logits).token, last) << vocabulary;
    for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
      Values with = logits;
      with[last / 2] = bad;
      EXPECT_EQ(likeliest(with).all_finite, 0u) << vocabulary << ' ' << bad;
    }
  }
  EXPECT_EQ(likeliest({-1.0, -0.0, 0.0, -2.0}).token, 1u);
  EXPECT_EQ(likeliest({-1.0, 0.0, -0.0, 0.0}).token, 1u);
}

/// More rows than a GPU takes at a time. If thread blocks go from row to row: with many columns past the rows that they
/// have under way, with few past the targets that they fetch at once. If a block has one row: more rows than the kernel
/// that adds their metrics has threads.
TEST_P(TransformerConformanceTest, TokenCrossEntropyOfManyRows) {
  for (const auto& [rows, columns] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{1100, 16392}, {500, 32776}, {300'000, 8}}) {
    compare_loss(describe({rows, columns}), [&, rows = rows, columns = columns](Bench& bench) -> Loss {
      const TokenBatch batch = random_tokens(bench, rows / 100, 100, columns);
      const Tensor logits = bench.put(random_eighths(rows * columns, 1, 3.0), {rows, columns});
      MetricSums* sums = bench.put_object(MetricSums{});
      bench.device().get<LossOps>().token_cross_entropy(logits, batch, 0, columns, 0.125f, logits, sums);
      return {bench.take(logits), bench.take_object(sums)};
    });
  }
}

/// Of as many columns, with padding, as the others.
struct VocabularyCase {
  std::int64_t rows, vocabulary, parts, columns, first;
};

/// Every part on its own, one after the other; the gradient is that of the vocabulary alone.
Loss loss_of_parts(Bench& bench, const VocabularyCase& c, const Values& logits, const TokenBatch& whole) {
  const std::int64_t kept = c.rows * LossOps::kSoftmaxStatistics;
  auto& ops = bench.device().get<LossOps>();
  std::vector<Tensor> parts;
  std::vector<TokenBatch> batches;
  Values statistics;
  for (std::int64_t part = 0; part < c.parts; ++part) {
    batches.push_back(whole);
    batches.back().vocabulary_slice = {static_cast<std::uint32_t>(part * c.columns),
                                       static_cast<std::uint32_t>(c.vocabulary)};
    Values mine(static_cast<std::size_t>(c.rows * c.columns), 100.0);  // whatever stands in the padding
    for (std::int64_t row = 0; row < c.rows; ++row) {
      const std::int64_t end = std::min(c.columns, c.vocabulary - part * c.columns);
      std::copy_n(logits.begin() + row * c.vocabulary + part * c.columns, end, mine.begin() + row * c.columns);
    }
    parts.push_back(bench.put(mine, {c.rows, c.columns}));
    const Tensor of_part =
        bench.put_master(Values(static_cast<std::size_t>(kept)), {c.rows, LossOps::kSoftmaxStatistics});
    const std::int64_t count = std::min(c.columns, c.vocabulary - part * c.columns);
    ops.partial_cross_entropy(parts.back(), batches.back(), c.first, count, of_part);
    const Values told = bench.take(of_part);
    statistics.insert(statistics.end(), told.begin(), told.end());
  }
  const Tensor all = bench.put_master(statistics, {c.parts, c.rows, LossOps::kSoftmaxStatistics});
  Loss result;
  result.gradient.resize(static_cast<std::size_t>(c.rows * c.vocabulary));
  for (std::int64_t part = 0; part < c.parts; ++part) {
    const auto index = static_cast<std::size_t>(part);
    const std::int64_t count = std::min(c.columns, c.vocabulary - part * c.columns);
    auto* sums = bench.put_object(MetricSums{1.5, 2, 3});
    ops.combined_cross_entropy(parts[index], batches[index], c.first, count, all, 0.125f, parts[index], sums);
    const MetricSums found = bench.take_object(sums);
    if (part > 0) {
      EXPECT_EQ(found.loss, result.sums.loss);
      EXPECT_EQ(found.correct, result.sums.correct);
    }
    result.sums = found;
    const Values gradient = bench.take(parts[index]);
    for (std::int64_t row = 0; row < c.rows; ++row) {
      const auto begin = gradient.begin() + row * c.columns;
      std::copy_n(begin, count, result.gradient.begin() + row * c.vocabulary + part * c.columns);
      EXPECT_TRUE(std::all_of(begin + count, begin + c.columns, [](double value) { return value == 0.0; }));
    }
  }
  return result;
}

/// Logits tie over parts, too: the first of the largest is a hit.
TEST_P(TransformerConformanceTest, CrossEntropyOfPartsIsThatOfTheWholeVocabulary) {
  for (const VocabularyCase& c :
       {VocabularyCase{5, 7, 2, 4, 3}, {40, 100, 4, 32, 5}, {9, 1000, 3, 336, 1}, {11, 50257, 2, 25136, 2}}) {
    const Values logits = random_eighths(c.rows * c.vocabulary, 1, 1.0);
    compare_loss(fmt::format("{} x {} in {} parts", c.rows, c.vocabulary, c.parts), [&](Bench& bench) -> Loss {
      const TokenBatch batch = random_tokens(bench, 8, 6, c.vocabulary);
      if (&bench.device() != oracle_.get()) return loss_of_parts(bench, c, logits, batch);
      const Tensor whole = bench.put(logits, {c.rows, c.vocabulary});
      auto* sums = bench.put_object(MetricSums{1.5, 2, 3});
      bench.device().get<LossOps>().token_cross_entropy(whole, batch, c.first, c.vocabulary, 0.125f, whole, sums);
      return {bench.take(whole), bench.take_object(sums)};
    });
  }
}

/// Where the loss of a row is not finite, its gradient is NaN; other rows do not notice. (Of a token that has
/// probability 0, softmax - onehot would be finite.)
TEST_P(TransformerConformanceTest, TheGradientOfALossThatIsNotFiniteIsNan) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const std::int64_t columns : {64, 20096, 50257, 50304, 60000, 151936}) {
    const std::int64_t vocabulary = columns - 7;
    const std::vector<std::pair<std::int64_t, double>> changes = {{3, -kInfinity},
                                                                  {1, kInfinity},
                                                                  {vocabulary - 1, kInfinity},
                                                                  {1, std::nan("")},
                                                                  {vocabulary - 1, std::nan("")}};
    for (const auto& [column, value] : changes) {
      SCOPED_TRACE(fmt::format("{} in column {} of {}", value, column, columns));
      Bench bench(*tested_);
      const TokenBatch batch = put_tokens(bench, {1, 2, 3, 4, 5}, 2, 2, 0);
      Values values = random_values(4 * columns, 3);
      values[static_cast<std::size_t>(columns + column)] = value;  // of the second row, whose target is 3
      const Tensor dlogits = bench.poisoned({4, columns});
      MetricSums* sums = bench.put_object(MetricSums{});
      bench.device().get<LossOps>().token_cross_entropy(bench.put(values, {4, columns}), batch, 0, vocabulary, 1.0f,
                                                        dlogits, sums);
      EXPECT_FALSE(std::isfinite(bench.take_object(sums).loss));
      const Values gradient = bench.take(dlogits);
      for (std::int64_t i = 0; i < 4 * columns; ++i) {
        if (i % columns >= vocabulary) continue;
        ASSERT_EQ(std::isfinite(gradient[static_cast<std::size_t>(i)]), i / columns != 1) << i;
      }
    }
  }
}

/// A column of minus infinity is one that cannot come: the others are as if it were not there.
TEST_P(TransformerConformanceTest, MaskedColumnsTakeNoPart) {
  for (const std::int64_t columns : {64, 20096, 50304, 60000, 151936}) {
    Values values = random_eighths(4 * columns, 3, 3.0);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i % 5 == 4 || i % static_cast<std::size_t>(columns) > 40)
        values[i] = -std::numeric_limits<double>::infinity();
    }
    for (std::int64_t row = 0; row < 4; ++row) {  // no target is masked
      for (std::int64_t target = 1; target < 6; ++target) {
        values[static_cast<std::size_t>(row * columns + target)] = 0.125 * static_cast<double>(target);
      }
    }
    const auto run = [&](Bench& bench) -> Loss {
      const TokenBatch batch = put_tokens(bench, {1, 2, 3, 4, 5}, 2, 2, 0);
      const Tensor dlogits = bench.poisoned({4, columns});
      MetricSums* sums = bench.put_object(MetricSums{});
      bench.device().get<LossOps>().token_cross_entropy(bench.put(values, {4, columns}), batch, 0, columns, 1.0f,
                                                        dlogits, sums);
      return {bench.take(dlogits), bench.take_object(sums)};
    };
    const Values out = compare_loss(describe({4, columns}), run).gradient;
    for (std::size_t i = 0; i < out.size(); ++i) {
      ASSERT_TRUE(std::isfinite(values[i]) || out[i] == 0.0) << columns << ": " << i;
    }
  }
}

}  // namespace
}  // namespace ddptrain::tests
