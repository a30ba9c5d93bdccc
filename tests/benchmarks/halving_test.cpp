#include "benchmarks/ddpbench/doctor/halving.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace ddptrain::bench {
namespace {

/// An all-reduce is as fast as its slowest unit and the slowest way between two of its units.
struct Cluster {
  std::map<int, double> units;
  std::map<std::pair<int, int>, double> ways;
  int rounds = 0;

  double rate(const std::vector<int>& set) const {
    double slowest = 10.0;
    for (const int a : set) {
      if (const auto unit = units.find(a); unit != units.end()) slowest = std::min(slowest, unit->second);
      for (const int b : set) {
        if (const auto way = ways.find({a, b}); way != ways.end()) slowest = std::min(slowest, way->second);
      }
    }
    return slowest * (1.0 + 0.02 * static_cast<double>(set.front() % 5));  // measurements differ
  }

  Halving examine(const std::vector<std::vector<int>>& groups, double tolerance = 0.5) {
    return halve(groups, tolerance, [&](const std::vector<std::vector<int>>& sets) {
      ++rounds;
      std::set<int> seen;
      std::vector<double> rates;
      for (const std::vector<int>& set : sets) {
        EXPECT_GE(set.size(), 2u);
        for (const int unit : set) EXPECT_TRUE(seen.insert(unit).second) << "unit " << unit << " twice at once";
        rates.push_back(rate(set));
      }
      return rates;
    });
  }

  Halving examine(int count) {
    std::vector<int> all(static_cast<std::size_t>(count));
    std::iota(all.begin(), all.end(), 0);
    return examine(std::vector<std::vector<int>>{all});
  }
};

TEST(Halving, NothingIsSlow) {
  for (int count = 0; count <= 17; ++count) EXPECT_TRUE(Cluster().examine(count).slow.empty()) << count;
}

TEST(Halving, NamesEverySingleSlowUnit) {
  for (const int count : {3, 4, 5, 6, 7, 8, 13, 16}) {
    for (int slow = 0; slow < count; ++slow) {
      Cluster cluster{{{slow, 1.0}}, {}};
      const auto found = cluster.examine(count).slow;
      ASSERT_EQ(found.size(), 1u) << slow << " of " << count;
      EXPECT_EQ(found[0].units, std::vector<int>{slow}) << count;
      EXPECT_TRUE(found[0].others.empty());
      EXPECT_NEAR(found[0].gb_per_s, 1.0, 0.1);
      EXPECT_NEAR(found[0].usual, 10.0, 1.0);
    }
  }
}

TEST(Halving, NamesSeveralSlowUnits) {
  Cluster cluster{{{1, 1.0}, {2, 2.0}, {9, 0.5}}, {}};
  std::set<int> named;
  for (const SlowPart& part : cluster.examine(16).slow) {
    ASSERT_EQ(part.units.size(), 1u);
    EXPECT_TRUE(part.others.empty());
    named.insert(part.units[0]);
  }
  EXPECT_EQ(named, (std::set<int>{1, 2, 9}));
}

TEST(Halving, NamesEverySingleSlowWay) {
  for (const int count : {3, 4, 5, 8, 13}) {
    for (int a = 0; a < count; ++a) {
      for (int b = a + 1; b < count; ++b) {
        Cluster cluster{{}, {{{a, b}, 1.0}}};
        const auto found = cluster.examine(count).slow;
        ASSERT_EQ(found.size(), 1u) << a << '-' << b << " of " << count;
        EXPECT_EQ(found[0].units, std::vector<int>{a}) << b << " of " << count;
        EXPECT_EQ(found[0].others, std::vector<int>{b}) << a << " of " << count;
      }
    }
  }
}

TEST(Halving, NamesTheWayBetweenTwoSwitches) {
  Cluster cluster;
  for (int a = 0; a < 4; ++a) {
    for (int b = 4; b < 8; ++b) cluster.ways[{a, b}] = 2.0;
  }
  const auto found = cluster.examine(8).slow;
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].units, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(found[0].others, (std::vector<int>{4, 5, 6, 7}));
  EXPECT_NEAR(found[0].gb_per_s / found[0].usual, 0.2, 0.03);
}

TEST(Halving, ComparesGroups) {
  Cluster cluster{{{5, 1.0}}, {}};
  const auto found = cluster.examine({{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}}).slow;
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].units, std::vector<int>{5});
  // Two GPUs of a host cannot be told apart, but other hosts show that their way is slow.
  Cluster pairs{{{2, 1.0}}, {}};
  const auto way = pairs.examine({{0, 1}, {2, 3}, {4, 5}}).slow;
  ASSERT_EQ(way.size(), 1u);
  EXPECT_EQ(way[0].units, std::vector<int>{2});
  EXPECT_EQ(way[0].others, std::vector<int>{3});
}

TEST(Halving, TakesFewRounds) {
  Cluster clean;
  clean.examine(64);
  EXPECT_EQ(clean.rounds, 6);
  Cluster slow{{{17, 1.0}}, {}};
  slow.examine(64);
  EXPECT_LE(slow.rounds, 24);  // what is slow, three times
}

TEST(Halving, WhatIsSlowForAMomentIsNotNamed) {
  int calls = 0;
  const auto measure = [&](const std::vector<std::vector<int>>& sets) {
    std::vector<double> rates(sets.size(), 10.0);
    if (++calls % 2 == 0) rates.front() = 1.0;
    return rates;
  };
  EXPECT_TRUE(halve({{0, 1, 2, 3, 4, 5, 6, 7}}, 0.5, measure).slow.empty());
}

TEST(Halving, ToleranceDecides) {
  Cluster cluster{{{2, 7.0}}, {}};
  EXPECT_TRUE(cluster.examine({{0, 1, 2, 3, 4, 5, 6, 7}}, 0.5).slow.empty());
  EXPECT_EQ(cluster.examine({{0, 1, 2, 3, 4, 5, 6, 7}}, 0.9).slow.size(), 1u);
}

}  // namespace
}  // namespace ddptrain::bench
