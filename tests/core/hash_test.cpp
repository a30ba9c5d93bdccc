#include "runtime/core/hash.h"

#include <gtest/gtest.h>

#include <vector>

namespace ddptrain {
namespace {

std::string hash_of(const std::vector<float>& values) {
  Hash128 hash;
  hash.add(values.data(), values.size() * sizeof(float));
  return hash.hex();
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

}  // namespace
}  // namespace ddptrain
