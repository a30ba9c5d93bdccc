#include "launch/app/job/check_hosts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/mpi_main.h"

namespace ddptrain {
namespace {

std::vector<HostFacts> hosts(const std::vector<std::string>& values) {
  std::vector<HostFacts> hosts;
  for (const std::string& value : values) {
    hosts.push_back({fmt::format("n{}", hosts.size() + 1), {{"MPI", "4.1", "X"}, {"the driver", value, "Install it"}}});
    hosts.back().clock = 1000.0;
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
  EXPECT_EQ(usual_facts(hosts({"570", "580", "580"})).at(1).value, "580");
  EXPECT_TRUE(host_differences({}).empty());
}

TEST(CheckHosts, DataAreComparedByNamesSizesAndContents) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / fmt::format("ddptrain_data_{}", test_world().rank());
  std::filesystem::create_directories(folder / "train");
  const auto write = [&](const char* name, const char* text) { std::ofstream(folder / name) << text; };
  write("train/images", "images");
  write("labels", "labels");
  write("empty", "");
  const HostFact before = data_fact(folder);
  EXPECT_EQ(before.what, "the data in " + folder.string());
  EXPECT_EQ(before.value.rfind("3 files of 12 bytes (XXH3 ", 0), 0u) << before.value;
  EXPECT_EQ(data_fact(folder).value, before.value);
  write("labels", "labelz");
  EXPECT_NE(data_fact(folder).value, before.value);
  EXPECT_EQ(data_fact(folder / "labels").value.rfind("1 files of 6 bytes", 0), 0u);
  write("labels", "labels");
  std::filesystem::rename(folder / "labels", folder / "label");
  EXPECT_NE(data_fact(folder).value, before.value);
  EXPECT_EQ(data_fact(folder / "nothing").value, "missing");
  std::filesystem::remove_all(folder);
}

TEST(CheckHosts, NamesClocks) {
  auto some = hosts({"1", "1", "1"});
  some[1].clock += 3600.0;
  EXPECT_EQ(host_differences(some),
            std::vector<std::string>{"n2: its clock is 3600.0 s ahead. Set it by NTP (chronyc tracking)."});
  some[1].clock = 1000.2;
  EXPECT_TRUE(host_differences(some).empty());
}

TEST(CheckHosts, ThisHostIsLikeItself) {
  EXPECT_TRUE(check_hosts(test_world()).empty());
  for (const HostFact& fact : facts_of_this_host()) {
    EXPECT_FALSE(fact.what.empty());
    EXPECT_FALSE(fact.advice.empty());
  }
}

}  // namespace
}  // namespace ddptrain
