#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/core/random.h"

namespace ddptrain {

/// XXH3-128 of 1024 bytes, written out for devices on which its library does not run. Such a piece is what XXH3 takes
/// without scrambling, hence the short form. Bytes are little-endian, as everywhere that CUDA runs.
inline constexpr std::size_t kXxh3PieceBytes = 1024;

/// Parts of XXH3's default secret that such a piece needs, unaligned ones included.
struct Xxh3Keys {
  std::uint64_t stripes[22];  ///< Stripe n uses the 8 from n on.
  std::uint64_t last[8];
  std::uint64_t low[8];
  std::uint64_t high[8];
};
Xxh3Keys xxh3_keys();

struct Digest128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const Digest128&, const Digest128&) = default;
};

/// Both halves of a * b, one over the other.
DDP_HOST_DEVICE std::uint64_t folded_product(std::uint64_t a, std::uint64_t b) {
#ifdef __CUDA_ARCH__
  return (a * b) ^ __umul64hi(a, b);
#else
  __extension__ using Wide = unsigned __int128;
  return (a * b) ^ static_cast<std::uint64_t>((static_cast<Wide>(a) * b) >> 64);
#endif
}

DDP_HOST_DEVICE std::uint64_t xxh3_merge(const std::uint64_t* sums, const std::uint64_t* keys, std::uint64_t result) {
  for (int i = 0; i < 8; i += 2) {
    result += folded_product(sums[i] ^ keys[i], sums[i + 1] ^ keys[i + 1]);
  }
  result = (result ^ (result >> 37)) * 0x165667919E3779F9ull;
  return result ^ (result >> 32);
}

/// `word(i)`: bytes 8 i to 8 i + 7 of the piece, i below 128.
template <class Word>
DDP_HOST_DEVICE Digest128 xxh3_128_of_piece(const Word& word, const Xxh3Keys& keys) {
  constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87ull, kPrime2 = 0xC2B2AE3D27D4EB4Full;
  std::uint64_t sums[8] = {
      0xC2B2AE3Dull,         kPrime1,      kPrime2, 0x165667B19E3779F9ull, 0x85EBCA77C2B2AE63ull, 0x85EBCA77ull,
      0x27D4EB2F165667C5ull, 0x9E3779B1ull};
  for (int stripe = 0; stripe < 16; ++stripe) {
    const std::uint64_t* key = stripe < 15 ? keys.stripes + stripe : keys.last;
    for (int i = 0; i < 8; ++i) {
      const std::uint64_t value = word(8 * stripe + i), mixed = value ^ key[i];
      sums[i ^ 1] += value;
      sums[i] += (mixed & 0xFFFFFFFFull) * (mixed >> 32);
    }
  }
  return {xxh3_merge(sums, keys.low, kXxh3PieceBytes * kPrime1),
          xxh3_merge(sums, keys.high, ~(kXxh3PieceBytes * kPrime2))};
}

}  // namespace ddptrain
