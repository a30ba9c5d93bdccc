#include "data/images/gray_image.h"
#include "tests/fuzz/fuzz.h"

/// An image: PGM, PNG or JPEG. What is taken has as many pixels as its size says, and that size was asked about before.

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddptrain::fuzz;
  constexpr std::int64_t kMostPixels = 1 << 16;
  const std::filesystem::path place = "folder/image";
  std::int64_t asked = -1;
  const auto check_size = [&](std::int64_t height, std::int64_t width) {
    require(height > 0 && width > 0, "sizes are positive");
    if (height > kMostPixels / width) ddptrain::usage_error("{}: too large for this test", place.string());
    asked = height * width;
  };
  const auto image = result_of(place, [&] { return ddptrain::decode_image({data, size}, place.string(), check_size); });
  if (!image) return 0;
  require(asked == image->height * image->width, "the size is asked about before pixels are decoded");
  require(static_cast<std::int64_t>(image->pixels.size()) == asked, "as many pixels as the size says");
  return 0;
}
