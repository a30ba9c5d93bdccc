#include "launch/app/job/check_hosts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/mpi_main.h"

namespace ddptrain {
namespace {

std::vector<HostFacts> hosts(const std::vector<std::string>& values) {
  std::vector<HostFacts> hosts;
  for (const std::string& value : values) {
    hosts.push_back({fmt::format("n{}", hosts.size() + 1), {{"MPI", "4.1", "X"}, {"the driver", value, "Install it"}}});
  }
  return hosts;
}

TEST(CheckHosts, NamesThoseThatDifferFromMost) {
  EXPECT_TRUE(host_differences(hosts({"580", "580", "580"})).empty());
  EXPECT_EQ(host_differences(hosts({"570", "580", "580"})),
            std::vector<std::string>{"n1: the driver is 570, and 580 elsewhere. Install it."});
  EXPECT_EQ(host_differences(hosts({"570", "580"})),
            std::vector<std::string>{"n2: the driver is 580, and 570 elsewhere. Install it."});
  EXPECT_EQ(host_differences(hosts({"1", "2", "3", "3"})).size(), 2u);
}

TEST(CheckHosts, WhatIsUnknownIsNoDifference) {
  EXPECT_TRUE(host_differences(hosts({"580", "", "580"})).empty());
  EXPECT_TRUE(host_differences(hosts({"", "", "580"})).empty());
}

TEST(CheckHosts, WhatMostHave) {
  EXPECT_EQ(usual_value(hosts({"570", "580", "580"}), 1), "580");
  EXPECT_TRUE(host_differences({}).empty());
}

TEST(CheckHosts, ThisHostIsLikeItself) {
  const std::vector<HostFacts> hosts = gather_host_facts(test_world());
  EXPECT_TRUE(host_differences(hosts).empty());
  EXPECT_EQ(hosts.size(), 1u);
  for (const HostFacts& host : hosts) {
    for (const HostFact& fact : host.facts) {
      EXPECT_FALSE(fact.what.empty());
      EXPECT_FALSE(fact.advice.empty());
    }
  }
}

}  // namespace
}  // namespace ddptrain
