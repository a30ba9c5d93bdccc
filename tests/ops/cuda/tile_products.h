#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ddptrain::tests {

inline constexpr int kAllClusters = 66;  // of an H100

/// A layer from `width` columns to `hidden`, and back.
struct ProductCase {
  std::int64_t rows, hidden, width;
};

inline const std::vector<ProductCase> kProductCases = {{1, 64, 64},      {128, 256, 128},  {300, 320, 192},
                                                       {1000, 448, 320}, {2049, 1024, 64}, {257, 192, 1536}};

inline std::string name_of_case(const ::testing::TestParamInfo<ProductCase>& info) {
  const ProductCase& c = info.param;
  return std::to_string(c.rows) + "x" + std::to_string(c.hidden) + "x" + std::to_string(c.width);
}

}  // namespace ddptrain::tests
