#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "tests/emulated/tile_products.h"
// The kernel, after what stands for CUDA.
#include "runtime/ops/cuda/gemm/swiglu_product.cuh"

namespace ddptrain::cuda::swiglu_product {
namespace {

using namespace emulated_tiles;

/// What SwiGLU of a pair is, and its gradients.
struct Gated {
  double y, dgate, dup;

  Gated(double gate, double up, double dy) {
    const double gated = 1.0 / (1.0 + std::exp(-gate));
    y = gate * gated * up;
    dgate = dy * up * gated * (1.0 + gate * (1.0 - gated));
    dup = dy * gate * gated;
  }
};

template <Pass kPass, int kFinishers>
void run(const Case& c, const Maps& maps, Problem p) {
  p.rows = c.rows;
  p.hidden = c.hidden;
  p.tiles = tiles_of(c, kHiddenOfTile<kPass>);
  run_clusters(c, Roles<kFinishers>::kThreads, sizeof(Shared),
               [&] { swiglu_product_kernel<kPass, kFinishers>(maps, p); });
}

void check_forward(const Case& c) {
  SCOPED_TRACE("forward, " + describe(c));
  const std::vector<bf16> x = random(c.rows, c.depth, 1), weight = random(2 * c.hidden, c.depth, 2);
  Guarded pre(c.rows, 2 * c.hidden), y(c.rows, c.hidden);
  const Maps maps{emulated::Matrix{x.data(), c.rows, c.depth, kRows}.map(),
                  emulated::Matrix{weight.data(), 2 * c.hidden, c.depth, kRows}.map()};
  run<Pass::forward, 3>(c, maps, {.result = pre.data(), .y = y.data()});
  if (::testing::Test::HasFatalFailure()) return;
  const auto depth = static_cast<std::size_t>(c.depth), hidden = static_cast<std::size_t>(c.hidden);
  const std::vector<double> sums = product(to_floats(x), transposed(to_floats(weight), depth), depth);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::size_t row = i / (2 * hidden), column = i % (2 * hidden);
    ASSERT_NO_FATAL_FAILURE(expect_rounded(pre.at(row, column), sums[i], 1, "pre", row, column));
    if (column >= hidden) continue;
    const Gated expected(pre.at(row, column), pre.at(row, column + hidden), 0.0);
    ASSERT_NO_FATAL_FAILURE(expect_rounded(y.at(row, column), expected.y, 1, "y", row, column));
  }
  pre.expect_guards();
  y.expect_guards();
}

template <Pass kPass, int kFinishers>
void check_backward(const Case& c) {
  SCOPED_TRACE(std::string(kPass == Pass::backward ? "backward, " : "backward with y again, ") +
               std::to_string(kFinishers) + " warps finish, " + describe(c));
  const std::vector<bf16> dy = random(c.rows, c.depth, 3), weight = random(c.depth, c.hidden, 4);
  const std::vector<bf16> pre = random(c.rows, 2 * c.hidden, 5);
  Guarded dpre(c.rows, 2 * c.hidden), y(c.rows, c.hidden);
  const Maps maps{emulated::Matrix{dy.data(), c.rows, c.depth, kRows}.map(),
                  emulated::Matrix{weight.data(), c.depth, c.hidden, kDepth}.map()};
  constexpr bool kAgain = kPass == Pass::backward_again;
  run<kPass, kFinishers>(c, maps, {.pre = pre.data(), .result = dpre.data(), .y = kAgain ? y.data() : nullptr});
  if (::testing::Test::HasFatalFailure()) return;
  const auto depth = static_cast<std::size_t>(c.depth), hidden = static_cast<std::size_t>(c.hidden);
  const std::vector<double> sums = product(to_floats(dy), to_floats(weight), depth);
  const std::vector<float> gates = to_floats(pre);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::size_t row = i / hidden, column = i % hidden, gate = row * 2 * hidden + column;
    const Gated expected(gates[gate], gates[gate + hidden], sums[i]);
    ASSERT_NO_FATAL_FAILURE(expect_rounded(dpre.at(row, column), expected.dgate, 2, "dgate", row, column));
    ASSERT_NO_FATAL_FAILURE(expect_rounded(dpre.at(row, column + hidden), expected.dup, 2, "dup", row, column));
    if (kAgain) ASSERT_NO_FATAL_FAILURE(expect_rounded(y.at(row, column), expected.y, 1, "y", row, column));
  }
  dpre.expect_guards();
  y.expect_guards();
}

/// More tiles side by side than are computed at about the same time.
constexpr Case kWideForward{260, 1088, 64, 2, true}, kWideBackward{130, 2112, 64, 2, true};

TEST(EmulatedSwigluProductTest, ForwardEqualsDoublePrecision) {
  for (const Case& c : kCases) check_forward(c);
  check_forward(kWideForward);
}

TEST(EmulatedSwigluProductTest, BackwardEqualsDoublePrecision) {
  for (const Case& c : kCases) {
    check_backward<Pass::backward, 3>(c);
    check_backward<Pass::backward, 7>(c);
  }
  check_backward<Pass::backward, 7>(kWideBackward);
}

TEST(EmulatedSwigluProductTest, BackwardWithTheActivationAgainEqualsDoublePrecision) {
  for (const Case& c : kCases) {
    check_backward<Pass::backward_again, 3>(c);
    check_backward<Pass::backward_again, 7>(c);
  }
  check_backward<Pass::backward_again, 3>(kWideBackward);
}

}  // namespace
}  // namespace ddptrain::cuda::swiglu_product
