#include "runtime/core/hash.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "runtime/core/xxh3_piece.h"

namespace ddptrain {
namespace {

std::string hash_of(const std::vector<float>& values) {
  Hash128 hash;
  hash.add(values.data(), values.size() * sizeof(float));
  return hash.hex();
}

TEST(Hash128, SeesEveryBitOfEveryValue) {
  const std::vector<float> values(101, 1.5f);
  std::set<std::string> seen{hash_of(values)};
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (int bit = 0; bit < 32; ++bit) {
      std::vector<float> changed = values;
      reinterpret_cast<unsigned char*>(&changed[i])[bit / 8] ^= static_cast<unsigned char>(1 << (bit % 8));
      seen.insert(hash_of(changed));
    }
  }
  EXPECT_EQ(seen.size(), 1 + values.size() * 32);
}

TEST(Hash128, SeesOrderLengthAndWhereOnePartEnds) {
  EXPECT_NE(hash_of({1.0f, 2.0f, 3.0f, 4.0f}), hash_of({3.0f, 4.0f, 1.0f, 2.0f}));
  EXPECT_NE(hash_of({0.0f}), hash_of({0.0f, 0.0f}));
  Hash128 one, two;
  one.add(std::string("ab"));
  one.add(std::string("c"));
  two.add(std::string("a"));
  two.add(std::string("bc"));
  EXPECT_NE(one.hex(), two.hex());
}

TEST(Hash128, IsXxh3OverLengthsAndValues) {
  Hash128 hash;
  hash.add(std::string("ab"));
  hash.add(std::int64_t{3});
  EXPECT_EQ(hash.hex(), "0a8864e3feecf95e51c4c98c5dfc4cc1");  // XXH3_128bits() of libxxhash 0.8.1
}

/// Against the library: every word, and words that differ in every bit.
TEST(Xxh3Piece, IsXxh3OfItsBytes) {
  const Xxh3Keys keys = xxh3_keys();
  std::set<std::string> seen;
  std::mt19937_64 random(1);
  std::vector<std::uint64_t> words(kXxh3PieceBytes / sizeof(std::uint64_t), 0);
  for (std::size_t changed = 0; changed <= words.size(); ++changed) {
    const Digest128 digest = xxh3_128_of_piece([&](int i) { return words[static_cast<std::size_t>(i)]; }, keys);
    const auto [high, low] = xxh3_128_value(words.data(), kXxh3PieceBytes);
    EXPECT_EQ(digest, (Digest128{low, high})) << changed;
    seen.insert(xxh3_128(words.data(), kXxh3PieceBytes));
    if (changed < words.size()) words[changed] = random();
  }
  EXPECT_EQ(seen.size(), words.size() + 1);
}

}  // namespace
}  // namespace ddptrain
