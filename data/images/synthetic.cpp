#include "data/images/images.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/core/error.h"
#include "runtime/core/process/host.h"
#include "runtime/core/random.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

constexpr std::size_t kSide = 28;
constexpr std::size_t kPixels = kSide * kSide;
constexpr std::size_t kWords = kPixels / 8;
constexpr std::size_t kClasses = 10;

using Words = std::array<std::uint64_t, kWords>;
using Patterns = std::array<Words, kClasses>;

/// Waves of a random direction and phase per class, in [0, 127]: with noise below 128 added, no byte overflows, so
/// eight pixels are added as one word.
Patterns make_patterns(std::uint64_t seed) {
  Patterns patterns{};
  for (std::size_t c = 0; c < kClasses; ++c) {
    const Philox random = philox(static_cast<std::uint32_t>(c), 0, 0, 1, seed);
    const float fx = 0.1f + 0.5f * uniform01(random.word[0]);
    const float fy = 0.1f + 0.5f * uniform01(random.word[1]);
    const float phase = 6.2831853f * uniform01(random.word[2]);
    std::array<std::uint8_t, kPixels> pixels{};
    for (std::size_t i = 0; i < kPixels; ++i) {
      const float wave =
          std::sin(fx * static_cast<float>(i % kSide) + phase) * std::cos(fy * static_cast<float>(i / kSide) - phase);
      pixels[i] = static_cast<std::uint8_t>(63.5f + 63.0f * wave);
    }
    std::memcpy(patterns[c].data(), pixels.data(), kPixels);
  }
  return patterns;
}

ImageDataset make_images(std::int64_t count, const Patterns& patterns, std::uint32_t stream, std::uint64_t seed) {
  const auto images = static_cast<std::size_t>(count);
  ImageDataset set{count, kSide, kSide, kClasses, {}, {}};
  set.images.resize(images * kPixels);
  set.labels.resize(images);
  for (std::size_t i = 0; i < images; ++i) {
    const Philox random = philox(static_cast<std::uint32_t>(i), stream, 0, 2, seed);
    const std::size_t label = random.word[0] % kClasses;
    std::uint64_t noise = (std::uint64_t{random.word[1]} << 32 | random.word[2]) | 1u;
    Words image;
    for (std::size_t w = 0; w < kWords; ++w) {
      noise ^= noise << 13;  // xorshift64 (Marsaglia 2003)
      noise ^= noise >> 7;
      noise ^= noise << 17;
      image[w] = patterns[label][w] + (noise & 0x7F7F7F7F7F7F7F7Fu);
    }
    std::memcpy(set.images.data() + i * kPixels, image.data(), kPixels);
    set.labels[i] = static_cast<std::uint8_t>(label);
  }
  return set;
}

}  // namespace

ImageData make_synthetic(std::int64_t train_count, std::uint64_t seed, int readers) {
  if (train_count < 1 || train_count > std::numeric_limits<std::uint32_t>::max()) {
    usage_error("synthetic data of {} images: give 1 to {}", train_count, std::numeric_limits<std::uint32_t>::max());
  }
  const std::int64_t test_count = std::max<std::int64_t>(10, train_count / 10);
  const auto all = static_cast<std::uint64_t>(train_count + test_count);
  require_host_memory(counted(train_count, "synthetic image"), all * (kPixels + 1), readers);
  const Patterns patterns = make_patterns(seed);
  return {make_images(train_count, patterns, 0, seed), make_images(test_count, patterns, 1, seed)};
}

}  // namespace ddptrain
