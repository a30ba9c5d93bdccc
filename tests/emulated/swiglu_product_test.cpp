#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "tests/emulated/device.h"
// The kernel, after what stands for CUDA.
#include "runtime/ops/cuda/gemm/swiglu_product.cuh"

namespace ddptrain::cuda::swiglu_product {
namespace {

alignas(1024) char memory[kCluster * sizeof(Shared)];

struct Case {
  int rows, hidden, depth;
  int clusters;
  bool products_late;
};

std::string describe(const Case& c) {
  return std::to_string(c.rows) + " rows, " + std::to_string(c.hidden) + " hidden columns, " + std::to_string(c.depth) +
         " terms, " + std::to_string(c.clusters) + " clusters, products " + (c.products_late ? "late" : "at once");
}

constexpr float kUntouched = 77.0f;

/// A matrix between rows that the kernel must leave as they are.
class Guarded {
 public:
  Guarded(int rows, int columns) : columns_(static_cast<std::size_t>(columns)) {
    values_.assign((static_cast<std::size_t>(rows) + 2 * kGuardRows) * columns_, __float2bfloat16(kUntouched));
    std::fill(values_.begin() + guard(), values_.end() - guard(), __float2bfloat16(NAN));
  }
  bf16* data() { return values_.data() + guard(); }
  double at(std::size_t row, std::size_t column) const {
    return static_cast<double>(__bfloat162float(values_[(row + kGuardRows) * columns_ + column]));
  }
  void expect_guards() const {
    const auto untouched = [](bf16 value) { return __bfloat162float(value) == kUntouched; };
    EXPECT_TRUE(std::all_of(values_.begin(), values_.begin() + guard(), untouched));
    EXPECT_TRUE(std::all_of(values_.end() - guard(), values_.end(), untouched));
  }

 private:
  static constexpr std::size_t kGuardRows = 4;
  std::ptrdiff_t guard() const { return static_cast<std::ptrdiff_t>(kGuardRows * columns_); }

  std::size_t columns_;
  std::vector<bf16> values_;
};

std::vector<bf16> random(int rows, int columns, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> values(-1.0f, 1.0f);
  std::vector<bf16> result(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
  for (bf16& value : result) value = __float2bfloat16(values(random));
  return result;
}
std::vector<float> to_floats(const std::vector<bf16>& values) {
  std::vector<float> result;
  for (const bf16 value : values) result.push_back(__bfloat162float(value));
  return result;
}
std::vector<float> transposed(const std::vector<float>& matrix, std::size_t columns) {
  std::vector<float> result(matrix.size());
  const std::size_t rows = matrix.size() / columns;
  for (std::size_t i = 0; i < matrix.size(); ++i) result[i % columns * rows + i / columns] = matrix[i];
  return result;
}

/// left [rows, depth] right [depth, columns], in double precision.
std::vector<double> product(const std::vector<float>& left, const std::vector<float>& right, std::size_t depth) {
  const std::size_t rows = left.size() / depth, columns = right.size() / depth;
  std::vector<double> sums(rows * columns, 0.0);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t k = 0; k < depth; ++k) {
      const double factor = left[row * depth + k];
      for (std::size_t i = 0; i < columns; ++i) sums[row * columns + i] += factor * right[k * columns + i];
    }
  }
  return sums;
}

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

/// `roundings` to bf16 lie between.
void expect_rounded(double found, double expected, int roundings, const char* name, std::size_t row,
                    std::size_t column) {
  ASSERT_NEAR(found, expected, std::abs(expected) * roundings * 0x1.1p-8 + 1e-5)
      << name << " in row " << row << ", column " << column;
}

template <Pass kPass, int kFinishers>
void run(const Case& c, Maps maps, Problem p) {
  p.rows = c.rows;
  p.hidden = c.hidden;
  p.depth = c.depth;
  p.columns = (c.hidden + kHiddenOfTile<kPass> - 1) / kHiddenOfTile<kPass>;
  p.pairs = (c.rows + kCluster * kRows - 1) / (kCluster * kRows);
  p.tiles = p.columns * p.pairs;
  gridDim.x = c.clusters * kCluster;
  for (int cluster = 0; cluster < c.clusters; ++cluster) {
    blockIdx = {cluster * kCluster, 0};
    std::fill_n(memory, sizeof(memory), '\xFF');  // NaN
    const emulated::Block::Settings settings{.threads = threads_of_block(kFinishers),
                                             .seed = static_cast<unsigned>(c.rows + c.depth + cluster),
                                             .work_late = c.products_late,
                                             .shared_memory = memory,
                                             .blocks = kCluster,
                                             .shared_bytes = sizeof(Shared)};
    ASSERT_NO_THROW(emulated::Block(settings).run([&] { swiglu_product_kernel<kPass, kFinishers>(maps, p); }));
  }
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

/// The ring of three stages is used in all phases. Tiles lie partly or fully outside.
const std::vector<Case> kCases = {
    {130, 64, 64, 1, false},   // a cluster has one pair of tiles
    {257, 320, 192, 2, true},  // two and three tiles in a cluster, as many stages in each as there are in the ring
    {300, 192, 256, 1, true},
    {520, 320, 128, 2, false},
};
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
