#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "tests/emulated/device.h"
// The kernels, after what stands for CUDA.
#include "runtime/ops/cuda/output_layer/gradient_product.cuh"
#include "runtime/ops/cuda/output_layer/logits_product.cuh"
#include "runtime/ops/cuda/output_layer/rows.cuh"

namespace ddptrain::cuda {
namespace {

using bf16 = __nv_bfloat16;
using gradient_product::Shares;
using tile_product::kCluster;
using tile_product::kColumns;
using tile_product::kRows;

constexpr float kScale = 0.25f;

struct Case {
  int rows, width, columns, vocabulary;
  int clusters;  ///< Of the logits.
  int workers;   ///< Of the gradient.
  bool work_late;
  bool seven_warps;
  unsigned seed;
};

std::string describe(const Case& c) {
  return std::to_string(c.rows) + " rows of " + std::to_string(c.width) + ", " + std::to_string(c.vocabulary) + " of " +
         std::to_string(c.columns) + " columns, " + std::to_string(c.clusters) + " clusters and " +
         std::to_string(c.workers) + " workers, work " + (c.work_late ? "late" : "at once") + ", seed " +
         std::to_string(c.seed);
}

double value_of(bf16 x) { return static_cast<double>(__bfloat162float(x)); }

std::vector<bf16> random(std::size_t count, float scale, std::mt19937& engine) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<bf16> values(count);
  for (bf16& value : values) value = __float2bfloat16(normal(engine));
  return values;
}

/// Random tensors, what the kernels make of them, and what it should be.
class Layer {
 public:
  explicit Layer(const Case& layer) : c(layer), engine(layer.seed) {
    x = random(cells(c.rows, c.width), 1.0f, engine);
    weights = random(cells(c.columns, c.width), 1.6f / std::sqrt(static_cast<float>(c.width)), engine);
    std::fill(weights.begin() + place(c.vocabulary, 0, c.width), weights.end(), __float2bfloat16(0.0f));
    tokens.resize(static_cast<std::size_t>(c.rows) + 1);
    for (auto& token : tokens) token = static_cast<std::uint16_t>(engine() % static_cast<unsigned>(c.vocabulary));
    logits.assign(cells(c.rows + kGuardRows, c.columns), __float2bfloat16(kUntouched));
    dx.assign(cells(c.rows + kGuardRows, c.width), __float2bfloat16(kUntouched));
  }

  /// The targets of every third row become the likeliest tokens.
  void aim() {
    for (int row = 0; row < c.rows; row += 3) {
      const std::vector<double> of_row = logits_of(row);
      const auto best = std::ranges::max_element(of_row) - of_row.begin();
      tokens[static_cast<std::size_t>(row) + 1] = static_cast<std::uint16_t>(best);
    }
  }

  /// With `slices` of the vocabulary. The others have no token with a probability above 0.
  void run(int slices = 1) {
    const int tiles = (c.columns + kColumns - 1) / kColumns;
    std::vector<SoftmaxPart> parts(cells(tiles, c.rows), {NAN, NAN});
    std::vector<RowGradient> gradients(static_cast<std::size_t>(c.rows), {NAN, -7, NAN});
    const int pairs = (c.rows + kCluster * kRows - 1) / (kCluster * kRows);
    const logits_product::Problem product{logits.data(), parts.data(), c.rows,
                                          c.columns,     c.vocabulary, {c.width, tiles, pairs, tiles * pairs}};
    c.seven_warps ? multiply<7>(product) : multiply<3>(product);
    const int blocks = (c.rows + output_rows::kRowsOfBlock - 1) / output_rows::kRowsOfBlock;
    metrics.assign(static_cast<std::size_t>(blocks), {NAN, 0});
    const output_rows::OfTiles of_tiles{parts.data(), logits.data(), tiles, kColumns, c.rows, c.columns, c.vocabulary};
    if (slices == 1) {
      launch(output_rows::kThreads, blocks, 1, 0,
             [&] { output_rows::rows_kernel(of_tiles, targets(), kScale, gradients.data(), metrics.data()); });
    } else {
      std::vector<output_rows::Statistics> statistics(cells(slices, c.rows), {-1.0f, 0.0f, 0.0f, 1.0f});
      launch(output_rows::kThreads, blocks, 1, 0,
             [&] { output_rows::statistics_kernel(of_tiles, targets(), statistics.data()); });
      const output_rows::OfSlices of_slices{&statistics.front().largest, slices, c.rows, c.vocabulary};
      launch(output_rows::kThreads, blocks, 1, 0,
             [&] { output_rows::rows_kernel(of_slices, targets(), kScale, gradients.data(), metrics.data()); });
    }
    multiply_gradients(gradients);
  }

  void expect_right() const {
    double loss = 0.0, differences[2] = {}, norms[2] = {};
    std::uint32_t hits = 0;
    for (int row = 0; row < c.rows; ++row) {
      const std::vector<double> expected = logits_of(row);
      const auto target = tokens[static_cast<std::size_t>(row) + 1];
      const double largest = *std::ranges::max_element(expected);
      double total = 0.0;
      for (const double logit : expected) total += std::exp(logit - largest);
      loss += std::log(total) + largest - expected[target];
      hits += std::ranges::max_element(expected) - expected.begin() == target ? 1 : 0;
      std::vector<double> of_x(static_cast<std::size_t>(columns_of_dx()));
      for (int column = 0; column < c.columns; ++column) {
        const double found = value_of(logits[at(row, column, c.columns)]);
        if (column >= c.vocabulary) {
          ASSERT_EQ(found, 0.0) << row << ", " << column;
          continue;
        }
        const double probability = std::exp(expected[static_cast<std::size_t>(column)] - largest) / total;
        const double gradient = (probability - (column == target ? 1.0 : 0.0)) * kScale;
        ASSERT_NEAR(found, gradient, std::abs(gradient) * 0.03 + 2e-3 * kScale) << row << ", " << column;
        add_difference(found, gradient, differences[0], norms[0]);
        for (std::size_t i = 0; i < of_x.size(); ++i) {
          of_x[i] += gradient * value_of(weights[at(column, static_cast<int>(i), c.width)]);
        }
      }
      for (std::size_t i = 0; i < of_x.size(); ++i) {
        add_difference(value_of(dx[at(row, static_cast<int>(i), c.width)]), of_x[i], differences[1], norms[1]);
      }
    }
    EXPECT_NEAR(loss_of_kernel() / loss, 1.0, 1e-4);
    EXPECT_EQ(hits_of_kernel(), hits);
    EXPECT_LT(std::sqrt(differences[0] / norms[0]), 6e-3) << "gradients of logits";
    EXPECT_LT(std::sqrt(differences[1] / norms[1]), 8e-3) << "gradient of x";
    expect_guards();
  }

  double loss_of_kernel() const {
    double sum = 0.0;
    for (const MetricPartial& part : metrics) sum += part.loss;
    return sum;
  }
  std::uint32_t hits_of_kernel() const {
    std::uint32_t sum = 0;
    for (const MetricPartial& part : metrics) sum += part.correct;
    return sum;
  }
  std::size_t at(int row, int column, int columns) const {
    return static_cast<std::size_t>(place(row, column, columns));
  }
  int columns_of_dx() const { return std::min(c.width, kColumns); }

  const Case c;
  std::vector<bf16> x, weights, logits, dx;
  std::vector<std::uint16_t> tokens;
  std::vector<MetricPartial> metrics;

 private:
  static constexpr float kUntouched = 77.0f;
  static constexpr int kGuardRows = 3;

  static std::ptrdiff_t place(int row, int column, int columns) {
    return static_cast<std::ptrdiff_t>(row) * columns + column;
  }
  static std::size_t cells(int rows, int columns) {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
  }
  static void add_difference(double value, double expected, double& differences, double& norms) {
    differences += (value - expected) * (value - expected);
    norms += expected * expected;
  }
  void expect_guards() const {
    const auto untouched = [](bf16 value) { return __bfloat162float(value) == kUntouched; };
    EXPECT_TRUE(std::all_of(logits.begin() + place(c.rows, 0, c.columns), logits.end(), untouched));
    EXPECT_TRUE(std::all_of(dx.begin() + place(c.rows, 0, c.width), dx.end(), untouched));
    for (int row = 0; row < c.rows; ++row) {
      for (int i = columns_of_dx(); i < c.width; ++i) ASSERT_TRUE(untouched(dx[at(row, i, c.width)]));
    }
  }

  /// As bf16 rounds them.
  std::vector<double> logits_of(int row) const {
    std::vector<double> result;
    for (int column = 0; column < c.vocabulary; ++column) {
      double logit = 0.0;
      for (int i = 0; i < c.width; ++i)
        logit += value_of(x[at(row, i, c.width)]) * value_of(weights[at(column, i, c.width)]);
      result.push_back(value_of(__float2bfloat16(static_cast<float>(logit))));
    }
    return result;
  }

  template <int kFinishers>
  void multiply(const logits_product::Problem& p) {
    const tile_product::Maps maps{emulated::Matrix{x.data(), c.rows, c.width, kRows}.map(),
                                  emulated::Matrix{weights.data(), c.columns, c.width, kColumns / kCluster}.map()};
    launch(tile_product::Roles<kFinishers>::kThreads, c.clusters * kCluster, kCluster, sizeof(tile_product::Shared),
           [&] { logits_product::logits_product_kernel<kFinishers>(maps, p); });
  }

  void multiply_gradients(const std::vector<RowGradient>& gradients) {
    using namespace gradient_product;
    const Shares shares{(c.rows + kTileRows - 1) / kTileRows, (c.columns + kUnit - 1) / kUnit, c.workers};
    std::vector<float> sums(static_cast<std::size_t>(shares.parts()) * kTileRows * kColumns, NAN);
    const Problem p{logits.data(), gradients.data(), sums.data(),     c.rows,
                    c.columns,     c.vocabulary,     columns_of_dx(), shares};
    const Maps maps{emulated::Matrix{logits.data(), c.rows, c.columns, kRows}.map(),
                    emulated::Matrix{weights.data(), c.columns, c.width, kUnit}.map()};
    launch(Role::kThreads, c.workers * kCluster, kCluster, sizeof(Memory), [&] { gradient_product_kernel(maps, p); });
    const int threads = c.rows * p.width / kSumColumns;
    launch(kSumThreads, (threads + kSumThreads - 1) / kSumThreads, 1, 0,
           [&] { sum_parts_kernel(p, dx.data(), c.width); });
  }

  /// One window of all tokens.
  SliceTargets targets() {
    segment = {tokens.data(), 0};
    Predictions result{};
    result.batch.order.dataset_size = 1;
    result.batch.order.shuffle = false;
    result.batch.count = 1;
    result.batch.source = {&segment, 1, 1, static_cast<std::uint32_t>(c.rows), 2};
    return {result};
  }

  template <class Kernel>
  void launch(int threads, int blocks, int cluster, std::size_t shared_bytes, const Kernel& kernel) {
    const std::size_t bytes = (std::max<std::size_t>(shared_bytes, 1) + 1023) / 1024 * 1024;
    std::vector<char> memory(bytes * static_cast<std::size_t>(cluster) + 1024, '\xFF');
    char* const aligned = memory.data() + (1024 - reinterpret_cast<std::uintptr_t>(memory.data()) % 1024) % 1024;
    gridDim.x = blocks;
    for (int block = 0; block < blocks; block += cluster) {
      blockIdx = {block, 0};
      const emulated::Block::Settings settings{.threads = threads,
                                               .seed = c.seed + static_cast<unsigned>(block),
                                               .work_late = c.work_late,
                                               .shared_memory = aligned,
                                               .blocks = cluster,
                                               .shared_bytes = bytes};
      emulated::Block(settings).run(kernel);
    }
  }

  std::mt19937 engine;
  TokenSegmentView segment;
};

/// Rows, columns and width that no tile divides; more stages than the rings have; tiles of several workers, and workers
/// of several tiles.
TEST(EmulatedOutputProductsTest, EqualDoublePrecision) {
  std::vector<Case> cases;
  for (const bool late : {false, true}) {
    cases.push_back({40, 64, 136, 129, 1, 1, late, late, 1});
    cases.push_back({300, 256, 704, 704, 2, 3, late, !late, 2});
    cases.push_back({513, 128, 456, 450, 2, 5, late, false, 3});
    cases.push_back({130, 320, 320, 250, 1, 2, late, true, 4});
  }
  for (const Case& c : cases) {
    SCOPED_TRACE(describe(c));
    Layer layer(c);
    layer.aim();
    ASSERT_NO_THROW(layer.run());
    EXPECT_GE(layer.hits_of_kernel(), static_cast<std::uint32_t>(c.rows) / 3);
    ASSERT_NO_FATAL_FAILURE(layer.expect_right());
  }
}

TEST(EmulatedOutputProductsTest, StatisticsOfSlicesGiveTheSame) {
  Layer layer({140, 64, 600, 590, 1, 2, true, false, 5});
  layer.aim();
  ASSERT_NO_THROW(layer.run(2));
  EXPECT_GE(layer.hits_of_kernel(), 140u / 3);
  ASSERT_NO_FATAL_FAILURE(layer.expect_right());
}

/// Columns of equal logits: the second in the tile of the first, the third in another one. `target`: of them.
TEST(EmulatedOutputProductsTest, OfEqualLogitsTheFirstIsTheHit) {
  constexpr int kEqual[] = {5, 9, 270};
  for (const int target : kEqual) {
    SCOPED_TRACE(target);
    Layer layer({200, 64, 512, 500, 1, 1, true, false, 6});
    for (const int column : kEqual) {
      std::copy_n(layer.weights.begin() + kEqual[0] * 64, 64, layer.weights.begin() + column * 64);
    }
    for (int row = 0; row < 200; row += 3) {  // the equal logits become the largest
      for (int i = 0; i < 64; ++i) {
        const float weight = __bfloat162float(layer.weights[static_cast<std::size_t>(kEqual[0] * 64 + i)]);
        layer.x[layer.at(row, i, 64)] = __float2bfloat16(8.0f * weight);
      }
      layer.tokens[static_cast<std::size_t>(row) + 1] = static_cast<std::uint16_t>(target);
    }
    ASSERT_NO_THROW(layer.run());
    ASSERT_NO_FATAL_FAILURE(layer.expect_right());
  }
}

TEST(EmulatedOutputProductsTest, RowsWithoutAFiniteLossHaveNoFiniteGradient) {
  Layer layer({70, 64, 256, 250, 1, 1, true, false, 7});
  layer.x[layer.at(3, 0, 64)] = __float2bfloat16(INFINITY);
  layer.x[layer.at(7, 5, 64)] = __float2bfloat16(NAN);
  ASSERT_NO_THROW(layer.run());
  for (const int row : {3, 7}) {
    for (int column = 0; column < layer.c.vocabulary; ++column) {
      EXPECT_TRUE(std::isnan(value_of(layer.logits[layer.at(row, column, layer.c.columns)])));
    }
  }
  EXPECT_TRUE(std::isfinite(value_of(layer.dx[layer.at(4, 0, 64)])));
  EXPECT_FALSE(std::isfinite(layer.loss_of_kernel()));
}

/// Also if only the loss is not finite: of a token that has probability 0, softmax - onehot would be finite.
TEST(EmulatedOutputProductsTest, ATargetOfProbabilityZeroHasNoFiniteGradient) {
  constexpr int kToken = 11;
  Layer layer({40, 64, 256, 250, 1, 1, false, false, 8});
  for (int row = 0; row < 40; ++row) {
    layer.x[layer.at(row, 0, 64)] = __float2bfloat16(1.0f);
    layer.tokens[static_cast<std::size_t>(row) + 1] = row == 5 ? kToken : 1;
  }
  layer.weights[layer.at(kToken, 0, 64)] = __float2bfloat16(-INFINITY);
  ASSERT_NO_THROW(layer.run());
  for (int row = 0; row < 40; ++row) {
    for (int column = 0; column < layer.c.vocabulary; ++column) {
      ASSERT_EQ(std::isnan(value_of(layer.logits[layer.at(row, column, layer.c.columns)])), row == 5) << column;
    }
  }
}

}  // namespace
}  // namespace ddptrain::cuda
