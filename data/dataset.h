#pragma once

#include <cstdint>
#include <vector>

namespace ddptrain {

/// Labelled grey-scale images in host memory.
struct ImageDataset {
  std::int64_t count = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t classes = 0;
  std::vector<std::uint8_t> images;  ///< [count, height, width]
  std::vector<std::uint8_t> labels;  ///< [count], each below `classes`
};

struct ImageData {
  ImageDataset train;
  ImageDataset test;
};

}  // namespace ddptrain
