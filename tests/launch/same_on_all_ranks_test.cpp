#include "launch/app/job/same_on_all_ranks.h"

#include <gtest/gtest.h>

namespace ddptrain {
namespace {

TEST(SameOnAllRanks, NodesCompareWhatTheirRanksHaveTogether) {
  const HeldData a{0, "a", "9 tokens", {1, 2}};
  const HeldData b{0, "a", "9 tokens", {4, 8}};
  const HeldData whole{1, "b", "9 tokens", {5, 10}};
  EXPECT_EQ(data_differences({a, b, whole}), "");
  EXPECT_EQ(data_differences({a, b}), "");
  HeldData other = whole;
  other.hash = {5, 11};
  EXPECT_EQ(data_differences({a, b, other}),
            "9 tokens (XXH3 0000000000000005000000000000000a) on ranks 0-1 (a); "
            "9 tokens (XXH3 0000000000000005000000000000000b) on rank 2 (b)");
  HeldData longer = b;
  longer.size = "10 tokens";
  EXPECT_NE(data_differences({a, longer}), "");
}

}  // namespace
}  // namespace ddptrain
