#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/ops/output_layer.h"
#include "tests/ops/token_batches.h"
#include "tests/ops/transformer_conformance.h"

namespace ddptrain::tests {
namespace {

constexpr float kLayerScale = 0.125f;
constexpr std::uint32_t kLayerSequence = 20;

struct LayerCase {
  std::int64_t rows, width, columns, vocabulary, first;
};

std::string describe(const LayerCase& c) {
  return fmt::format("{} x {} x {} of {}, from row {}", c.rows, c.columns, c.width, c.vocabulary, c.first);
}

/// Rows with four elements that are not zero, 1 or -1. So logits are exact in every precision, and often tie.
Values sparse_rows(std::int64_t rows, std::int64_t width) {
  Values values(static_cast<std::size_t>(rows * width));
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < 4; ++i) {
      values[static_cast<std::size_t>(row * width + (row * 37 + i * 13) % width)] = (row + i) % 3 == 0 ? -1.0 : 1.0;
    }
  }
  return values;
}

/// Zero in the padding.
Values weight_of(const LayerCase& c) {
  Values values = random_eighths(c.vocabulary * c.width, 5, 3.0);
  values.resize(static_cast<std::size_t>(c.columns * c.width), 0.0);
  return values;
}

TokenBatch batch_of(Bench& bench, const LayerCase& c) {
  return random_tokens(bench, (c.first + c.rows + kLayerSequence - 1) / kLayerSequence, kLayerSequence, c.vocabulary);
}

struct LayerLoss {
  Loss loss;  ///< With the gradient of the logits.
  Values d_x;
  MetricSums without_gradient;
};

LayerLoss loss_of(Bench& bench, const LayerCase& c) {
  auto& ops = bench.device().get<OutputLayerOps>();
  const Tensor x = bench.put(sparse_rows(c.rows, c.width), {c.rows, c.width});
  const Tensor d_x = bench.poisoned(x.shape);
  const OutputRows rows{x,
                        bench.put(weight_of(c), {c.columns, c.width}),
                        bench.poisoned({c.rows, c.columns}),
                        batch_of(bench, c),
                        c.first,
                        c.vocabulary};
  auto* sums = bench.put_object(MetricSums{1.5, 2, 3});
  ops.loss(rows, 0.0f, Tensor{}, sums);
  const MetricSums without_gradient = bench.take_object(sums);
  auto* again = bench.put_object(MetricSums{1.5, 2, 3});
  ops.loss(rows, kLayerScale, d_x, again);
  return {{bench.take(rows.logits), bench.take_object(again)}, bench.take(d_x), without_gradient};
}

/// Also around the sizes of a kernel's tiles: 128 rows, 256 columns, 256 of the width.
const std::vector<LayerCase> kLayerCases = {{1, 64, 128, 100, 0},      {40, 64, 16, 9, 3},      {300, 192, 520, 513, 1},
                                            {257, 256, 1280, 1271, 0}, {128, 320, 384, 384, 7}, {130, 768, 640, 600, 0},
                                            {70, 1024, 256, 255, 2},   {33, 40, 96, 90, 0}};

/// Each gradient of a logit is compared, too: that of a target is lost in the norm of all.
TEST_P(TransformerConformanceTest, OutputLayerAndLoss) {
  for (const LayerCase& c : kLayerCases) {
    LayerLoss tested, expected;
    compare_loss(describe(c), [&](Bench& bench) {
      LayerLoss& mine = &bench.device() == oracle_.get() ? expected : tested;
      mine = loss_of(bench, c);
      return mine.loss;
    });
    EXPECT_LE(relative_error(tested.d_x, expected.d_x), GetParam().tolerance) << describe(c);
    EXPECT_NEAR(tested.without_gradient.loss, expected.loss.sums.loss, 1e-5 * expected.loss.sums.loss) << describe(c);
    EXPECT_EQ(tested.without_gradient.correct, expected.loss.sums.correct) << describe(c);
    EXPECT_EQ(tested.without_gradient.samples, expected.loss.sums.samples) << describe(c);
    for (std::size_t i = 0; i < tested.loss.gradient.size(); ++i) {
      const double found = tested.loss.gradient[i], right = expected.loss.gradient[i];
      const bool padding = static_cast<std::int64_t>(i) % c.columns >= c.vocabulary;
      ASSERT_TRUE(padding ? found == 0.0 : std::abs(found - right) <= GetParam().tolerance * kLayerScale)
          << describe(c) << ": " << i << ": " << found << " in place of " << right;
    }
  }
}

/// A slice of the vocabulary after another, whose terms of d_x are added up.
Loss loss_of_slices(Bench& bench, const LayerCase& c, std::int64_t slices) {
  auto& ops = bench.device().get<OutputLayerOps>();
  const std::int64_t columns = c.columns / slices;
  const Tensor x = bench.put(sparse_rows(c.rows, c.width), {c.rows, c.width});
  const Values weight = weight_of(c);
  std::vector<OutputRows> parts;
  Values statistics;
  for (std::int64_t slice = 0; slice < slices; ++slice) {
    const auto begin = weight.begin() + slice * columns * c.width;
    parts.push_back({x, bench.put(Values(begin, begin + columns * c.width), {columns, c.width}),
                     bench.poisoned({c.rows, columns}), batch_of(bench, c), c.first,
                     std::min(columns, c.vocabulary - slice * columns)});
    parts.back().batch.vocabulary_slice = {static_cast<std::uint32_t>(slice * columns),
                                           static_cast<std::uint32_t>(c.vocabulary)};
    const Tensor mine = put_statistics(bench, {c.rows, LossOps::kSoftmaxStatistics});
    ops.partial_loss(parts.back(), mine);
    const Values found = bench.take(mine);
    statistics.insert(statistics.end(), found.begin(), found.end());
  }
  const Tensor all = bench.put_master(statistics, {slices, c.rows, LossOps::kSoftmaxStatistics});
  Loss result{Values(static_cast<std::size_t>(c.rows * c.width)), {}};
  for (const OutputRows& part : parts) {
    auto* sums = bench.put_object(MetricSums{1.5, 2, 3});
    const Tensor d_x = bench.poisoned(x.shape);
    ops.combined_loss(part, all, kLayerScale, d_x, sums);
    result.sums = bench.take_object(sums);
    const Values term = bench.take(d_x);
    for (std::size_t i = 0; i < term.size(); ++i) result.gradient[i] += term[i];
  }
  return result;
}

TEST_P(TransformerConformanceTest, OutputLayerOfSlicesIsThatOfTheWholeVocabulary) {
  for (const auto& [c, slices] : std::vector<std::pair<LayerCase, std::int64_t>>{
           {{40, 64, 128, 100, 0}, 2}, {{150, 320, 1072, 1071, 3}, 2}, {{130, 256, 1024, 1000, 0}, 4}}) {
    compare_loss(describe(c), [&, c = c, slices = slices](Bench& bench) -> Loss {
      if (&bench.device() != oracle_.get()) return loss_of_slices(bench, c, slices);
      const LayerLoss whole = loss_of(bench, c);
      return {whole.d_x, whole.loss.sums};
    });
  }
}

}  // namespace
}  // namespace ddptrain::tests
