#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "runtime/core/step.h"

namespace ddptrain {

static_assert(std::endian::native == std::endian::little, "half-words are taken from memory, low half first");

namespace detail {
inline constexpr std::uint32_t kMaskCalls = 32;                 // Philox calls in a batch
inline constexpr std::uint32_t kMaskFeatures = kMaskCalls * 8;  // that they serve
}  // namespace detail

/// factors[f] = what feature f of the sample at `row` is multiplied by: scale() or 0. Draws every Philox call once, in
/// batches that the compiler vectorises. For samples from their start: dropout.first is not looked at.
template <class T>
void dropout_factors(const Dropout& dropout, std::uint32_t row, std::int64_t features, T* factors) {
  if (dropout.rate <= 0.0f) {
    std::fill_n(factors, features, T{1});
    return;
  }
  using detail::kMaskCalls;
  using detail::kMaskFeatures;
  const Dropout here = dropout;
  const std::uint64_t now = dropout.step.value();
  const auto step_low = static_cast<std::uint32_t>(now);
  const std::uint32_t step_high = here.site ^ (static_cast<std::uint32_t>(now >> 32) << 8);
  const std::uint32_t threshold = here.threshold();
  const T scale = T{1} / (T{1} - static_cast<T>(here.rate));
  for (std::int64_t first = 0; first < features; first += kMaskFeatures) {
    const auto first_call = static_cast<std::uint32_t>(first / 8);
    std::uint32_t words[4][kMaskCalls];
    for (std::uint32_t call = 0; call < kMaskCalls; ++call) {
      const Philox random =
          philox<Dropout::kRounds>(first_call + call, here.position + row, step_low, step_high, here.seed);
      for (int i = 0; i < 4; ++i) words[i][call] = random.word[i];
    }
    // The inverse of dropout_slot: word g of the calls 4 b to 4 b + 3 serves the features 32 b + 8 g to + 7, low half
    // first.
    std::uint16_t halves[kMaskFeatures];
    for (std::size_t group = 0; group < kMaskCalls; ++group) {
      std::memcpy(halves + 8 * group, words[group % 4] + group / 4 * 4, 16);
    }
    T batch[kMaskFeatures];
    for (std::uint32_t f = 0; f < kMaskFeatures; ++f) batch[f] = (halves[f] & 0x7FFFu) >= threshold ? scale : T{0};
    std::copy_n(batch, std::min<std::int64_t>(kMaskFeatures, features - first), factors + first);
  }
}

}  // namespace ddptrain
