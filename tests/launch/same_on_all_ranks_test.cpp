#include "launch/app/job/same_on_all_ranks.h"

#include <gtest/gtest.h>

namespace ddptrain {
namespace {

TEST(SameOnAllRanks, NodesCompareWhatTheirRanksHaveTogether) {
  const std::vector<int> nodes = {0, 0, 1};
  const std::string whole = "9 tokens (XXH3 0000000000000005000000000000000a)";
  const std::string other = "9 tokens (XXH3 0000000000000005000000000000000b)";
  const std::vector<std::string> same = {"9 tokens", "9 tokens", "9 tokens"};
  EXPECT_EQ(data_of_nodes(nodes, same, {{1, 2}, {4, 8}, {5, 10}}), (std::vector{whole, whole, whole}));
  EXPECT_EQ(data_of_nodes(nodes, same, {{1, 2}, {4, 8}, {5, 11}}), (std::vector{whole, whole, other}));
  EXPECT_EQ(data_of_nodes({0}, {"10 tokens"}, {{5, 10}}).front(), "10" + whole.substr(1));
}

}  // namespace
}  // namespace ddptrain
