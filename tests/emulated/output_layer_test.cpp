#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tests/emulated/device.h"
// The kernels, after what stands for CUDA.
#include "runtime/ops/cuda/output_layer_gradient.cuh"
#include "runtime/ops/cuda/output_layer_logits.cuh"

namespace ddptrain::cuda::output_layer {
namespace {

constexpr std::size_t kSharedBytes = 227 * 1024;

struct Case {
  int rows, units, vocabulary;
  int logits_workers, gradient_workers;
  bool work_late;
  unsigned seed;
};

std::string describe(const Case& c) {
  return std::to_string(c.rows) + " rows, vocabulary of " + std::to_string(c.vocabulary) + ", " +
         std::to_string(c.logits_workers) + " and " + std::to_string(c.gradient_workers) + " workers, work " +
         (c.work_late ? "late" : "at once") + ", seed " + std::to_string(c.seed);
}

float value_of(__nv_bfloat16 x) { return __bfloat162float(x); }

std::vector<__nv_bfloat16> random(std::size_t count, float scale, std::mt19937& engine) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<__nv_bfloat16> values(count);
  for (auto& value : values) value = __float2bfloat16(normal(engine));
  return values;
}

/// Random tensors, what the kernels make of them, and what it should be.
class Layer {
 public:
  explicit Layer(const Case& layer) : c(layer), columns(layer.units * kUnit), engine(layer.seed) {
    x = random(cells(kWidth), 1.0f, engine);
    weights = random(static_cast<std::size_t>(columns) * kWidth, 0.1f, engine);
    for (const int equal : {kSecond, kThird}) {
      std::copy_n(weights.begin() + kFirst * kWidth, kWidth, weights.begin() + equal * kWidth);
    }
    tokens.resize(static_cast<std::size_t>(c.rows) + 1);
    for (auto& token : tokens) token = static_cast<std::uint16_t>(engine() % static_cast<unsigned>(c.vocabulary));
    dlogits.assign(cells(columns), __float2bfloat16(NAN));
    dx.assign(cells(kWidth), __float2bfloat16(NAN));
  }

  void run() {
    const Shares logits_shares{tiles(kLogitsTile), c.units, c.logits_workers};
    const Shares gradient_shares{tiles(kGradientTile), c.units, c.gradient_workers};
    std::vector<RowPart> row_parts(parts(logits_shares) * kLogitsTile, {NAN, NAN, -1});
    std::vector<RowGradient> row_gradients(static_cast<std::size_t>(c.rows), {NAN, NAN, -1});
    std::vector<float> dx_parts(parts(gradient_shares) * kGradientTile * kWidth, NAN);
    metrics.assign(static_cast<std::size_t>((c.rows + kRowsPerBlock - 1) / kRowsPerBlock), {NAN, 0});
    Problem p{};
    p.logits_shares = logits_shares;
    p.gradient_shares = gradient_shares;
    p.predictions = predictions();
    p.rows = c.rows;
    p.vocabulary = c.vocabulary;
    p.gradient_scale = kScale;
    p.logits = dlogits.data();
    p.row_parts = row_parts.data();
    p.row_gradients = row_gradients.data();
    p.dx_parts = dx_parts.data();
    p.metrics = metrics.data();
    const auto map_of_logits = [this](int tile_rows) {
      return emulated::Matrix{dlogits.data(), c.rows, columns, tile_rows}.map();
    };
    const CUtensorMap map_of_weights = emulated::Matrix{weights.data(), columns, kWidth}.map();
    const LogitsMaps logits_maps{emulated::Matrix{x.data(), c.rows, kWidth}.map(), map_of_weights, map_of_logits(16)};
    const GradientMaps gradient_maps{map_of_logits(64), map_of_weights, map_of_logits(32)};
    launch(kLogitsThreads, c.logits_workers * kCluster, kCluster, [&] { logits_kernel(logits_maps, p); });
    launch(kRowThreads, static_cast<int>(metrics.size()), 1, [&] { rows_kernel(p); });
    launch(kGradientThreads, c.gradient_workers * kCluster, kCluster, [&] { input_gradient_kernel(gradient_maps, p); });
    launch(kSumThreads, (c.rows * kWidth + kPack * kSumThreads - 1) / (kPack * kSumThreads), 1,
           [&] { sum_parts_kernel(p, dx.data()); });
  }

  /// Norm of the difference over the norm, of dlogits and dx; and of a row's loss and hit.
  void expect_right() {
    double loss = 0.0, differences[2] = {}, norms[2] = {};
    std::uint32_t hits = 0, hits_of_kernel = 0;
    for (int row = 0; row < c.rows; ++row) {
      const std::vector<double> logits = logits_of(row);
      const int target = tokens[static_cast<std::size_t>(row) + 1];
      const double largest = *std::max_element(logits.begin(), logits.end());
      double total = 0.0;
      for (const double logit : logits) total += std::exp(logit - largest);
      loss += std::log(total) + largest - logits[static_cast<std::size_t>(target)];
      hits += std::max_element(logits.begin(), logits.end()) - logits.begin() == target ? 1 : 0;
      std::vector<double> expected(kWidth);
      for (int column = 0; column < columns; ++column) {
        const bool counts = column < c.vocabulary;
        const double probability = counts ? std::exp(logits[static_cast<std::size_t>(column)] - largest) / total : 0.0;
        const double gradient = (probability - (column == target ? 1.0 : 0.0)) * kScale;
        add_difference(value_of(dlogits[cell(row, column, columns)]), gradient, differences[0], norms[0]);
        for (int i = 0; i < kWidth; ++i) {
          expected[static_cast<std::size_t>(i)] += gradient * value_of(weights[cell(column, i, kWidth)]);
        }
        if (!counts) {
          EXPECT_EQ(value_of(dlogits[cell(row, column, columns)]), 0.0f) << row << ", " << column;
        }
      }
      for (int i = 0; i < kWidth; ++i) {
        add_difference(value_of(dx[cell(row, i, kWidth)]), expected[static_cast<std::size_t>(i)], differences[1],
                       norms[1]);
      }
    }
    double loss_of_kernel = 0.0;
    for (const MetricPartial& part : metrics) {
      loss_of_kernel += part.loss;
      hits_of_kernel += part.correct;
    }
    EXPECT_NEAR(loss_of_kernel / loss, 1.0, 5e-5) << describe(c);
    EXPECT_EQ(hits_of_kernel, hits) << describe(c);
    EXPECT_LT(std::sqrt(differences[0] / norms[0]), 4e-3) << "dlogits, " << describe(c);
    EXPECT_LT(std::sqrt(differences[1] / norms[1]), 6e-3) << "dx, " << describe(c);
  }

  /// Columns of equal logits: the second in the unit of the first, the third in another one.
  static constexpr int kFirst = 5, kSecond = 9, kThird = 130;

  /// The targets become what is most likely, and where that is kFirst, `instead`.
  void aim(int instead) {
    for (int row = 0; row < c.rows; ++row) {
      std::vector<double> logits = logits_of(row);
      const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      tokens[static_cast<std::size_t>(row) + 1] = static_cast<std::uint16_t>(best == kFirst ? instead : best);
    }
  }

  const Case c;
  const int columns;
  std::vector<__nv_bfloat16> x, weights, dlogits, dx;
  std::vector<std::uint16_t> tokens;
  std::vector<MetricPartial> metrics;

 private:
  static constexpr float kScale = 0.25f;

  static std::size_t parts(const Shares& shares) { return static_cast<std::size_t>(shares.workers + shares.tiles - 1); }
  static std::size_t cell(int row, int column, int columns) {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(columns) + static_cast<std::size_t>(column);
  }
  static void add_difference(float value, double expected, double& differences, double& norms) {
    differences += (value - expected) * (value - expected);
    norms += expected * expected;
  }
  int tiles(int rows) const { return (c.rows + rows - 1) / rows; }
  std::size_t cells(int width) const { return cell(c.rows, 0, width); }

  /// In bf16.
  std::vector<double> logits_of(int row) const {
    std::vector<double> logits;
    for (int column = 0; column < c.vocabulary; ++column) {
      double logit = 0.0;
      for (int i = 0; i < kWidth; ++i) {
        logit += value_of(x[cell(row, i, kWidth)]) * value_of(weights[cell(column, i, kWidth)]);
      }
      logits.push_back(value_of(__float2bfloat16(static_cast<float>(logit))));
    }
    return logits;
  }

  /// One window of all tokens.
  Predictions predictions() {
    segment = {tokens.data(), 0};
    Predictions result{};
    result.batch.order.dataset_size = 1;
    result.batch.order.shuffle = false;
    result.batch.count = 1;
    result.batch.source = {&segment, 1, 1, static_cast<std::uint32_t>(c.rows), 2};
    return result;
  }

  template <class Kernel>
  void launch(int threads, int blocks, int cluster, const Kernel& kernel) {
    std::vector<char> memory(kSharedBytes * static_cast<std::size_t>(cluster) + 1024, '\xFF');
    char* const aligned = memory.data() + (1024 - reinterpret_cast<std::uintptr_t>(memory.data()) % 1024) % 1024;
    for (int block = 0; block < blocks; block += cluster) {
      blockIdx.x = block;
      emulated::Block({threads, c.seed, c.work_late, aligned, cluster, kSharedBytes}).run(kernel);
    }
  }

  std::mt19937 engine;
  TokenSegmentView segment;
};

TEST(EmulatedOutputLayerTest, EqualsDoublePrecision) {
  std::vector<Case> cases;
  for (const bool late : {false, true}) {
    cases.push_back({40, 3, 150, 1, 1, late, 1});
    cases.push_back({300, 11, 704, 3, 2, late, 2});
    cases.push_back({513, 8, 450, 7, 5, late, 3});
  }
  for (const Case& c : cases) {
    Layer layer(c);
    ASSERT_NO_THROW(layer.run()) << describe(c);
    layer.expect_right();
  }
}

TEST(EmulatedOutputLayerTest, OfEqualLogitsTheFirstIsTheHit) {
  for (const int target : {Layer::kFirst, Layer::kSecond, Layer::kThird}) {
    Layer layer({200, 9, 500, 4, 1, true, 4});
    for (int i = 0; i < 200; i += 3) {  // the equal logits become the largest
      std::copy_n(layer.weights.begin() + Layer::kFirst * kWidth, kWidth, layer.x.begin() + i * kWidth);
    }
    layer.aim(target);
    ASSERT_NO_THROW(layer.run());
    layer.expect_right();
  }
}

TEST(EmulatedOutputLayerTest, RowsWithoutAFiniteLossHaveNoFiniteGradient) {
  Layer layer({70, 4, 256, 2, 1, true, 5});
  layer.x[3 * kWidth] = __float2bfloat16(INFINITY);
  layer.x[7 * kWidth + 5] = __float2bfloat16(NAN);
  ASSERT_NO_THROW(layer.run());
  for (const int row : {3, 7}) {
    for (int column = 0; column < layer.columns; ++column) {
      EXPECT_TRUE(std::isnan(value_of(layer.dlogits[static_cast<std::size_t>(row * layer.columns + column)])));
    }
  }
  EXPECT_TRUE(std::isfinite(value_of(layer.dx[4 * kWidth])));
  EXPECT_FALSE(std::isfinite(layer.metrics[0].loss));
}

}  // namespace
}  // namespace ddptrain::cuda::output_layer
