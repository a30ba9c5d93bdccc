#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "tests/emulated/tile_products.h"
// The kernel, after what stands for CUDA.
#include "runtime/ops/cuda/gemm/gelu_product.cuh"

namespace ddptrain::cuda::gelu_product {
namespace {

using namespace emulated_tiles;

/// The tanh form of the GELU and its derivative.
struct Gelu {
  double y, slope;

  explicit Gelu(double x) {
    const double root = std::sqrt(2.0 / M_PI), cubic = 0.044715;
    const double t = std::tanh(root * (x + cubic * x * x * x));
    y = 0.5 * x * (1.0 + t);
    slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * root * (1.0 + 3.0 * cubic * x * x);
  }
};

template <Pass kPass>
void run(const Case& c, const Maps& maps, Problem p) {
  p.rows = c.rows;
  p.hidden = c.hidden;
  p.tiles = tiles_of(c, kColumns);
  run_clusters(c, Roles<kFinishers<kPass>>::kThreads, sizeof(SharedOf<kPass>),
               [&] { gelu_product_kernel<kPass>(maps, p); });
}

void check_forward(const Case& c) {
  SCOPED_TRACE("forward, " + describe(c));
  const std::vector<bf16> x = random(c.rows, c.depth, 1), weight = random(c.hidden, c.depth, 2);
  const std::vector<bf16> bias = random(1, c.hidden, 3);
  Guarded pre(c.rows, c.hidden), y(c.rows, c.hidden);
  const Maps maps{emulated::Matrix{x.data(), c.rows, c.depth, kRows}.map(),
                  emulated::Matrix{weight.data(), c.hidden, c.depth, kRows}.map()};
  run<Pass::forward>(c, maps, {.bias = bias.data(), .pre = pre.data(), .result = y.data()});
  if (::testing::Test::HasFatalFailure()) return;
  const auto depth = static_cast<std::size_t>(c.depth), hidden = static_cast<std::size_t>(c.hidden);
  const std::vector<double> sums = product(to_floats(x), transposed(to_floats(weight), depth), depth);
  const std::vector<float> biases = to_floats(bias);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::size_t row = i / hidden, column = i % hidden;
    ASSERT_NO_FATAL_FAILURE(expect_rounded(pre.at(row, column), sums[i] + biases[column], 1, "pre", row, column));
    ASSERT_NO_FATAL_FAILURE(expect_rounded(y.at(row, column), Gelu(pre.at(row, column)).y, 1, "y", row, column));
  }
  pre.expect_guards();
  y.expect_guards();
}

/// Sums of the tiles that lie below each other.
std::vector<double> add_tiles(const std::vector<float>& sums, std::size_t hidden) {
  std::vector<double> total(hidden, 0.0);
  for (std::size_t i = 0; i < sums.size(); ++i) total[i % hidden] += static_cast<double>(sums[i]);
  return total;
}

void check_backward(const Case& c) {
  SCOPED_TRACE("backward, " + describe(c));
  const std::vector<bf16> dy = random(c.rows, c.depth, 4), weight = random(c.depth, c.hidden, 5);
  std::vector<bf16> pre = random(c.rows, c.hidden, 6);
  Guarded dpre(c.rows, c.hidden);
  const auto depth = static_cast<std::size_t>(c.depth), hidden = static_cast<std::size_t>(c.hidden);
  const auto rows_of_tiles = static_cast<std::size_t>(kCluster * tiles_of(c, kColumns).pairs);
  std::vector<float> partials((rows_of_tiles + 1) * hidden, NAN);
  const Maps maps{emulated::Matrix{dy.data(), c.rows, c.depth, kRows}.map(),
                  emulated::Matrix{weight.data(), c.depth, c.hidden, kDepth}.map()};
  run<Pass::backward>(c, maps, {.pre = pre.data(), .result = dpre.data(), .sums = partials.data()});
  if (::testing::Test::HasFatalFailure()) return;
  for (std::size_t i = rows_of_tiles * hidden; i < partials.size(); ++i) ASSERT_TRUE(std::isnan(partials[i])) << i;
  partials.resize(rows_of_tiles * hidden);
  const std::vector<double> sums = product(to_floats(dy), to_floats(weight), depth),
                            found = add_tiles(partials, hidden);
  const std::vector<float> pres = to_floats(pre);
  std::vector<double> expected_sums(hidden, 0.0), magnitudes(hidden, 0.0);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::size_t row = i / hidden, column = i % hidden;
    const double expected = sums[i] * Gelu(pres[i]).slope;
    ASSERT_NO_FATAL_FAILURE(expect_rounded(dpre.at(row, column), expected, 2, "dpre", row, column));
    expected_sums[column] += expected;
    magnitudes[column] += std::abs(expected);
  }
  for (std::size_t i = 0; i < hidden; ++i) {
    ASSERT_NEAR(found[i], expected_sums[i], magnitudes[i] * 0x1p-9 + 1e-5) << "sum of column " << i;
  }
  dpre.expect_guards();
}

/// More tiles side by side than are computed at about the same time.
constexpr Case kWide{130, 2112, 64, 2, true};

TEST(EmulatedGeluProductTest, ForwardEqualsDoublePrecision) {
  for (const Case& c : kCases) {
    check_forward(c);
  }
  check_forward(kWide);
}

TEST(EmulatedGeluProductTest, BackwardEqualsDoublePrecision) {
  for (const Case& c : kCases) {
    check_backward(c);
  }
  check_backward(kWide);
}

}  // namespace
}  // namespace ddptrain::cuda::gelu_product
