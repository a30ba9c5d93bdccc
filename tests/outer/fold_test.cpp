#include "runtime/outer/fold.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "runtime/core/error.h"
#include "tests/outer/outer_rig.h"

namespace ddptrain {
namespace {

using Outcome = OuterFold::Outcome;

constexpr std::int64_t kSize = 200;

OuterRule rounds_of(std::int64_t groups, OuterOptimizer optimizer = OuterOptimizer::nesterov) {
  return {groups, optimizer, 0.7f, 0.9f, 0};
}

/// A group's copy of the outer state.
struct Copy {
  explicit Copy(const OuterRule& rule, std::int64_t fragments = 1, OuterCodec codec = OuterCodec::fp32)
      : layout{1, kSize, fragments, codec},
        weights(some_values(kSize, 100)),
        velocity(rule.optimizer == OuterOptimizer::sgd ? 0 : kSize, 0.0f),
        fold(rule, layout, weights, velocity) {}

  Outcome add(const std::string& bytes) { return fold.add(std::get<OuterEntry>(parse_entry(bytes, layout))); }
  std::string entry(const std::string& group, std::uint64_t round, std::uint64_t base, std::uint32_t seed,
                    std::uint32_t fragment = 0) const {
    return entry_of(layout, group, round, base, some_values(layout.range(fragment).count(), seed), fragment);
  }

  OuterLayout layout;
  std::vector<float> weights;
  std::vector<float> velocity;
  OuterFold fold;
};

TEST(FoldTest, ARoundIsTheMeanInTheOrderOfNames) {
  Copy copy(rounds_of(3, OuterOptimizer::sgd));
  const std::vector<float> before = copy.weights;
  EXPECT_EQ(copy.add(copy.entry("c", 0, 0, 3)), Outcome::waits);
  EXPECT_EQ(copy.add(copy.entry("a", 0, 0, 1)), Outcome::waits);
  EXPECT_EQ(copy.weights, before);
  EXPECT_EQ(copy.add(copy.entry("b", 0, 0, 2)), Outcome::applied);
  EXPECT_EQ(copy.fold.version(0), 1u);
  const auto a = some_values(kSize, 1), b = some_values(kSize, 2), c = some_values(kSize, 3);
  for (std::size_t i = 0; i < before.size(); ++i) {
    volatile float sum = a[i] + b[i];  // no contraction here either
    sum = sum + c[i];
    volatile float step = sum * (1.0f / 3.0f);
    step = 0.7f * step;
    EXPECT_EQ(copy.weights[i], before[i] - step) << i;
  }
}

TEST(FoldTest, TheOrderOfARoundsEntriesDoesNotCount) {
  std::vector<std::string> names = {"a", "b", "c", "d"};
  std::vector<float> first;
  do {
    Copy copy(rounds_of(4));
    for (std::uint64_t round = 0; round < 3; ++round) {
      for (const std::string& name : names) {
        copy.add(copy.entry(name, round, round,
                            static_cast<std::uint32_t>(10 * round) + static_cast<unsigned char>(name[0])));
      }
    }
    EXPECT_EQ(copy.fold.version(0), 3u);
    if (first.empty()) first = copy.weights;
    ASSERT_EQ(copy.weights, first);
  } while (std::ranges::next_permutation(names).found);
}

TEST(FoldTest, NesterovIsTheFormula) {
  Copy copy(rounds_of(1));
  double weight = copy.weights[5], velocity = 0.0;
  for (std::uint64_t round = 0; round < 5; ++round) {
    copy.add(copy.entry("a", round, round, static_cast<std::uint32_t>(round)));
    const double difference = some_values(kSize, static_cast<std::uint32_t>(round))[5];
    velocity = 0.9 * velocity + difference;
    weight -= 0.7 * (difference + 0.9 * velocity);
  }
  EXPECT_NEAR(copy.weights[5], weight, 1e-5);
}

TEST(FoldTest, EntriesThatDoNotFitChangeNothing) {
  Copy copy(rounds_of(2)), other(rounds_of(2));
  copy.add(copy.entry("a", 0, 0, 1));
  EXPECT_EQ(copy.add(copy.entry("a", 0, 0, 99)), Outcome::repeated);
  copy.add(copy.entry("b", 0, 0, 2));
  EXPECT_EQ(copy.add(copy.entry("a", 0, 0, 99)), Outcome::repeated);
  EXPECT_EQ(copy.add(copy.entry("c", 1, 1, 99)), Outcome::foreign);
  EXPECT_EQ(copy.add(copy.entry("a", 2, 2, 99)), Outcome::ahead);
  EXPECT_EQ(copy.add(copy.entry("a", 7, 1, 99)), Outcome::ahead);
  EXPECT_EQ(copy.fold.missing(0), (std::vector<std::string>{"a", "b"}));
  copy.add(copy.entry("b", 1, 1, 3));
  EXPECT_EQ(copy.fold.missing(0), std::vector<std::string>{"a"});
  copy.add(copy.entry("a", 1, 1, 4));
  for (const auto& [name, round, seed] : {std::tuple{"a", 0u, 1u}, {"b", 0u, 2u}, {"b", 1u, 3u}, {"a", 1u, 4u}}) {
    other.add(other.entry(name, round, round, seed));
  }
  EXPECT_EQ(copy.weights, other.weights);
}

TEST(FoldTest, WithoutRoundsAgeLowersTheWeight) {
  const OuterRule rule{0, OuterOptimizer::sgd, 1.0f, 0.0f, 2};
  Copy copy(rule);
  copy.add(copy.entry("a", 0, 0, 1));
  const std::vector<float> before = copy.weights;
  EXPECT_EQ(copy.add(copy.entry("b", 0, 0, 2)), Outcome::applied);
  EXPECT_EQ(copy.fold.last_age(0), 1u);
  const std::vector<float> difference = some_values(kSize, 2);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_FLOAT_EQ(copy.weights[i], before[i] - 0.5f * difference[i]);
  EXPECT_EQ(copy.add(copy.entry("b", 0, 0, 2)), Outcome::repeated);
  EXPECT_EQ(copy.add(copy.entry("c", 0, 0, 3)), Outcome::applied);
  const std::vector<float> now = copy.weights;
  EXPECT_EQ(copy.add(copy.entry("d", 0, 0, 4)), Outcome::too_old);
  EXPECT_EQ(copy.add(copy.entry("d", 1, 9, 4)), Outcome::ahead);
  EXPECT_EQ(copy.weights, now);
  EXPECT_EQ(copy.fold.next_round(0, "b"), 1u);
  EXPECT_EQ(copy.fold.next_round(0, "e"), 0u);
}

TEST(FoldTest, ManyGroupsDoNotTakeMemoryWithoutEnd) {
  Copy copy({0, OuterOptimizer::sgd, 1.0f, 0.0f, 1 << 20});
  for (std::size_t i = 0; i < OuterFold::kMostGroups; ++i) {
    EXPECT_EQ(copy.add(copy.entry("g" + std::to_string(i), 0, 0, 1)), Outcome::applied);
  }
  EXPECT_EQ(copy.add(copy.entry("more", 0, 0, 1)), Outcome::foreign);
}

TEST(FoldTest, TheRecordOfTheMostGroupsFits) {
  for (const std::int64_t fragments : {1, 16, 300}) {
    Copy copy({0, OuterOptimizer::sgd, 1.0f, 0.0f, 1 << 20}, fragments);
    const std::string number = std::to_string(std::uint64_t{1} << 53);
    std::string rounds;
    for (std::size_t i = 0; i < OuterFold::most_groups(fragments); ++i) {
      const std::string name = std::to_string(i);
      rounds += fmt::format("{}\"{}{}\":{}", i == 0 ? "" : ",", std::string(64 - name.size(), 'g'), name, number);
    }
    std::string record;
    for (std::int64_t i = 0; i < fragments; ++i) {
      record += fmt::format(R"({}{{"version":{},"next_round":{{{}}}}})", i == 0 ? "" : ",", number, rounds);
    }
    copy.fold.restore(fmt::format(R"({{"fragments":[{}]}})", record));
    const std::size_t bytes = nlohmann::json(copy.fold.record()).dump().size();
    const std::size_t of_group = static_cast<std::size_t>(fragments) * 140;  // positions and rounds of its differences
    EXPECT_LE(bytes + of_group, OuterFold::most_record_bytes(fragments)) << fragments;
    EXPECT_GE(OuterFold::most_groups(fragments), 40u);
    if (copy.layout.range(0).count() == 0) continue;
    EXPECT_EQ(copy.add(copy.entry("more", 0, 0, 1)), Outcome::foreign);
  }
}

TEST(FoldTest, FragmentsAreIndependent) {
  Copy one(rounds_of(1), 3), other(rounds_of(1), 3);
  for (const std::uint32_t fragment : {0u, 1u, 2u}) one.add(one.entry("a", 0, 0, fragment, fragment));
  for (const std::uint32_t fragment : {2u, 0u, 1u}) other.add(other.entry("a", 0, 0, fragment, fragment));
  EXPECT_EQ(one.weights, other.weights);
  EXPECT_EQ(one.fold.version(1), 1u);
}

TEST(FoldTest, GoesOnFromItsRecord) {
  for (const std::int64_t groups : {0, 2}) {
    OuterRule rule = rounds_of(groups);
    rule.most_age = 10;
    Copy whole(rule, 2, OuterCodec::int4);
    std::vector<std::string> entries;
    for (std::uint64_t round = 0; round < 4; ++round) {
      for (const char* name : {"a", "b"}) {
        for (const std::uint32_t fragment : {0u, 1u})
          entries.push_back(whole.entry(name, round, round, fragment, fragment));
      }
    }
    for (const std::string& bytes : entries) whole.add(bytes);
    Copy before(rule, 2, OuterCodec::int4);
    for (std::size_t i = 0; i < 9; ++i) before.add(entries[i]);
    const std::string record = before.fold.record();
    Copy after(rule, 2, OuterCodec::int4);
    after.weights = before.weights;
    after.velocity = before.velocity;
    OuterFold fold(rule, after.layout, after.weights, after.velocity);
    fold.restore(record);
    for (std::size_t i = 8; i < entries.size(); ++i) {  // the one that waited is added again
      fold.add(std::get<OuterEntry>(parse_entry(entries[i], after.layout)));
    }
    EXPECT_EQ(after.weights, whole.weights) << groups;
  }
}

TEST(FoldTest, DamagedRecordsAreRefused) {
  Copy copy(rounds_of(2));
  for (const char* record : {"", "[]", "{}", R"({"fragments":[]})", R"({"fragments":[1]})",
                             R"({"fragments":[{"version":-1,"next_round":{}}]})",
                             R"({"fragments":[{"version":1,"next_round":{"a b":1}}]})"}) {
    EXPECT_THROW(copy.fold.restore(record), UsageError) << record;
  }
}

}  // namespace
}  // namespace ddptrain
