#include "benchmarks/ddpbench/doctor.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace ddptrain::bench {
namespace {

std::vector<HostRates> hosts(int count) {
  std::vector<HostRates> hosts;
  for (int i = 0; i < count; ++i) hosts.push_back({fmt::format("n{}", i + 1), i, 100.0, 20.0, {}});
  return hosts;
}

/// Both ways between neighbours in a ring, 10 GB/s each.
std::vector<LinkRate> ring(int count) {
  std::vector<LinkRate> links;
  for (int i = 0; i < (count == 2 ? 1 : count); ++i) {
    links.push_back({i, (i + 1) % count, 10.0, 20.0});
    links.push_back({(i + 1) % count, i, 10.0, 20.0});
  }
  return links;
}

std::vector<LinkRate> slowed(int count, int from, int to) {
  std::vector<LinkRate> links = ring(count);
  for (LinkRate& link : links) {
    if ((from < 0 || link.from == from) && (to < 0 || link.to == to)) link.gb_per_s = 1.0;
  }
  return links;
}

void expect_only(const std::vector<std::string>& lines, const std::string& begin) {
  ASSERT_EQ(lines.size(), 1u) << lines.back();
  EXPECT_EQ(lines[0].rfind(begin, 0), 0u) << lines[0];
}

TEST(Doctor, NothingIsSlow) {
  for (const int count : {1, 2, 3, 8}) {
    expect_only(diagnosis(hosts(count), count == 1 ? std::vector<LinkRate>{} : ring(count), 0.5),
                "No host and no link");
  }
}

TEST(Doctor, HostThatSendsSlowly) {
  for (const int count : {2, 3, 4, 7}) {
    expect_only(diagnosis(hosts(count), slowed(count, 1, -1), 0.5),
                "n2 is slow: it sends at 1 GB/s, 10% of what is usual (10)");
  }
}

TEST(Doctor, HostThatReceivesSlowly) {
  for (const int count : {3, 4, 7}) {
    expect_only(diagnosis(hosts(count), slowed(count, -1, 1), 0.5), "n2 is slow: it receives at 1 GB/s");
  }
}

TEST(Doctor, HostThatIsSlowBothWays) {
  std::vector<LinkRate> links = ring(5);
  for (LinkRate& link : links) {
    if (link.from == 3 || link.to == 3) link.gb_per_s = 2.0;
  }
  expect_only(diagnosis(hosts(5), links, 0.5), "n4 is slow: it sends and receives at 2 GB/s");
}

TEST(Doctor, OneWayThatIsSlow) {
  expect_only(diagnosis(hosts(4), slowed(4, 1, 2), 0.5), "The way from n2 to n3 is slow: 1 GB/s, 10%");
}

TEST(Doctor, ProcessorAndMemory) {
  auto slow = hosts(3);
  slow[2].processor_gflops = 30.0;
  slow[2].notes = {"load 12 on 8 processors"};
  expect_only(
      diagnosis(slow, ring(3), 0.5),
      "n3 is slow: it computes at 30 GFLOP/s on one processor, 30% of what is usual (100). Different there: load 12");
  slow = hosts(2);
  slow[0].memory_gb_per_s = 5.0;
  expect_only(diagnosis(slow, ring(2), 0.5), "n1 is slow: it copies memory at 5 GB/s");
}

}  // namespace
}  // namespace ddptrain::bench
