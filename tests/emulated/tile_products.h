#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "tests/emulated/device.h"
// After what stands for CUDA.
#include "runtime/ops/cuda/gemm/tile_product.cuh"

/// Cases of products of tiles (tile_product.cuh), their operands, and products in double precision.

namespace ddptrain::cuda::emulated_tiles {

using tile_product::bf16;
using tile_product::kCluster;
using tile_product::kRows;

struct Case {
  int rows, hidden, depth;
  int clusters;
  bool products_late;
};

inline std::string describe(const Case& c) {
  return std::to_string(c.rows) + " rows, " + std::to_string(c.hidden) + " hidden columns, " + std::to_string(c.depth) +
         " terms, " + std::to_string(c.clusters) + " clusters, products " + (c.products_late ? "late" : "at once");
}

/// `columns`: of the result in a tile.
inline tile_product::Tiles tiles_of(const Case& c, int columns) {
  const int beside = (c.hidden + columns - 1) / columns;
  const int pairs = (c.rows + kCluster * kRows - 1) / (kCluster * kRows);
  return {c.depth, beside, pairs, beside * pairs};
}

/// Runs `kernel` once for each cluster of the case. Its shared memory is full of NaN.
template <class Kernel>
void run_clusters(const Case& c, int threads, std::size_t shared_bytes, const Kernel& kernel) {
  constexpr std::size_t kMost = std::size_t{227} << 10;
  alignas(1024) static char memory[kCluster * kMost];
  ASSERT_LE(shared_bytes, kMost);
  gridDim.x = c.clusters * kCluster;
  for (int cluster = 0; cluster < c.clusters; ++cluster) {
    blockIdx = {cluster * kCluster, 0};
    std::fill_n(memory, sizeof(memory), '\xFF');
    const emulated::Block::Settings settings{.threads = threads,
                                             .seed = static_cast<unsigned>(c.rows + c.depth + cluster),
                                             .work_late = c.products_late,
                                             .shared_memory = memory,
                                             .blocks = kCluster,
                                             .shared_bytes = shared_bytes};
    ASSERT_NO_THROW(emulated::Block(settings).run(kernel));
  }
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

inline std::vector<bf16> random(int rows, int columns, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> values(-1.0f, 1.0f);
  std::vector<bf16> result(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
  for (bf16& value : result) value = __float2bfloat16(values(random));
  return result;
}
inline std::vector<float> to_floats(const std::vector<bf16>& values) {
  std::vector<float> result;
  for (const bf16 value : values) result.push_back(__bfloat162float(value));
  return result;
}
inline std::vector<float> transposed(const std::vector<float>& matrix, std::size_t columns) {
  std::vector<float> result(matrix.size());
  const std::size_t rows = matrix.size() / columns;
  for (std::size_t i = 0; i < matrix.size(); ++i) result[i % columns * rows + i / columns] = matrix[i];
  return result;
}

/// left [rows, depth] right [depth, columns], in double precision.
inline std::vector<double> product(const std::vector<float>& left, const std::vector<float>& right, std::size_t depth) {
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

/// `roundings` to bf16 lie between.
inline void expect_rounded(double found, double expected, int roundings, const char* name, std::size_t row,
                           std::size_t column) {
  ASSERT_NEAR(found, expected, std::abs(expected) * roundings * 0x1.1p-8 + 1e-5)
      << name << " in row " << row << ", column " << column;
}

/// The ring of three stages is used in all phases. Tiles lie partly or fully outside.
inline const std::vector<Case> kCases = {
    {130, 64, 64, 1, false},   // a cluster has one pair of tiles
    {257, 320, 192, 2, true},  // two and three tiles in a cluster, as many stages in each as there are in the ring
    {300, 192, 256, 1, true},
    {520, 320, 128, 2, false},
};

}  // namespace ddptrain::cuda::emulated_tiles
