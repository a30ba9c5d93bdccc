#include "launch/app/tasks/tuned_cache.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <vector>

#include "runtime/core/process/scoped_environment.h"
#include "tests/support/captured_log.h"
#include "tests/support/mpi_main.h"
#include "tests/support/says.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;

const TunedFor kMachine = {{"GPU", "NVIDIA H200/x"}, {"cuBLAS", "13.1.0"}};

class TunedCacheTest : public testing::Test {
 protected:
  bool is_first() const { return test_world().rank() == 0; }
  /// What this rank finds is its own; what it takes is rank 0's.
  void choose(TunedChoices& choices, const std::string& work) const {
    const TunedChoices::AllRanks together(choices);
    const std::string mine = fmt::format("choice of rank {}", test_world().rank());
    EXPECT_EQ(choices.choose(work, mine), "choice of rank 0");
  }
  static std::string choice(const TunedChoices& choices, const std::string& work) {
    const std::string* found = choices.find(work);
    return found == nullptr ? "none" : *found;
  }
  std::vector<fs::path> files() const { return {fs::directory_iterator(folder_ / "cache"), fs::directory_iterator()}; }
  std::string cache() const { return (folder_ / "cache").string(); }

  const Mesh mesh_{test_world(), mesh_of(test_world().size(), 1, 1)};
  tests::SharedFolder folder_{"tuned"};
};

TEST_F(TunedCacheTest, TheNextRunTakesTheSame) {
  {
    TunedChoices choices;
    TunedCache cache(test_world(), mesh_, choices, this->cache(), kMachine);
    EXPECT_EQ(choices.open(), test_world().size() == 1);
    choose(choices, "a");
    choose(choices, "b");
    cache.save();
    EXPECT_EQ(cache.path().empty(), !is_first());
    test_world().barrier();
    ASSERT_EQ(files().size(), 1u);
    EXPECT_EQ(files()[0].filename().string().rfind("NVIDIA-H200-x-", 0), 0u);
  }
  TunedChoices choices;
  TunedCache cache(test_world(), mesh_, choices, this->cache(), kMachine);
  ASSERT_NE(choices.find("a"), nullptr);
  EXPECT_EQ(*choices.find("a"), "choice of rank 0");
  EXPECT_EQ(*choices.find("b"), "choice of rank 0");
  EXPECT_EQ(choices.find("c"), nullptr);
  TunedFor newer = kMachine;
  newer["cuBLAS"] = "13.2.0";
  TunedChoices others;
  const TunedCache other(test_world(), mesh_, others, this->cache(), newer);
  EXPECT_EQ(others.find("a"), nullptr) << "another machine has another file";
}

TEST_F(TunedCacheTest, JobsAddToWhatOthersHaveKeptAndRefusedOnesLeaveTheFile) {
  TunedChoices first, second;
  TunedCache cache_of_first(test_world(), mesh_, first, cache(), kMachine);
  TunedCache cache_of_second(test_world(), mesh_, second, cache(), kMachine);
  choose(first, "a");
  choose(second, "b");
  cache_of_first.save();
  test_world().barrier();
  cache_of_second.save();
  test_world().barrier();
  TunedChoices third, fourth;
  TunedCache cache_of_third(test_world(), mesh_, third, cache(), kMachine);
  EXPECT_NE(third.find("a"), nullptr);
  EXPECT_NE(third.find("b"), nullptr);
  third.refuse("a");
  cache_of_third.save();
  test_world().barrier();
  const TunedCache cache_of_fourth(test_world(), mesh_, fourth, cache(), kMachine);
  EXPECT_EQ(fourth.find("a"), nullptr);
  EXPECT_NE(fourth.find("b"), nullptr);
}

TEST_F(TunedCacheTest, DamagedFilesAreWrittenAgain) {
  TunedChoices choices;
  TunedCache cache(test_world(), mesh_, choices, this->cache(), kMachine);
  choose(choices, "a");
  cache.save();
  for (const char* content : {"", "{", "not JSON"}) {
    if (is_first()) std::ofstream(cache.path()) << content;
    const CapturedLog log;
    TunedChoices afresh;
    TunedCache again(test_world(), mesh_, afresh, this->cache(), kMachine);
    EXPECT_EQ(occurrences(log.text(), "Tuning starts afresh: " + cache.path().string()), is_first() ? 1 : 0);
    EXPECT_EQ(afresh.find("a"), nullptr) << content;
    choose(afresh, "a");
    again.save();
    TunedChoices read;
    const TunedCache repaired(test_world(), mesh_, read, this->cache(), kMachine);
    EXPECT_NE(read.find("a"), nullptr) << content;
  }
}

TEST_F(TunedCacheTest, WhatCannotBeKeptIsNoError) {
  if (is_first()) std::ofstream(folder_ / "cache") << "a file";
  for (const std::string& folder : {cache(), std::string("/proc"), std::string("off")}) {
    const CapturedLog log;
    TunedChoices choices;
    TunedCache cache(test_world(), mesh_, choices, folder, kMachine);
    choose(choices, "a");
    EXPECT_NO_THROW(cache.save());
    cache.save();
    EXPECT_EQ(occurrences(log.text(), "choices are not kept"), is_first() && folder != "off" ? 1 : 0) << folder;
  }
  EXPECT_FALSE(fs::exists("off"));
}

TEST_F(TunedCacheTest, RanksOnDifferentMachinesChooseForThemselves) {
  if (test_world().size() == 1) GTEST_SKIP() << "one rank";
  TunedFor mine = kMachine;
  mine["GPU"] += std::to_string(test_world().rank());
  const CapturedLog log;
  TunedChoices choices;
  TunedCache cache(test_world(), mesh_, choices, this->cache(), mine);
  EXPECT_EQ(occurrences(log.text(), "each rank chooses for itself"), is_first() ? 1 : 0);
  EXPECT_TRUE(choices.open());
  EXPECT_EQ(choices.choose("a", std::to_string(test_world().rank())), std::to_string(test_world().rank()));
  cache.save();
  EXPECT_FALSE(fs::exists(this->cache()));
}

/// Stages do different work, and a stage may wait for the results of another one while that one chooses.
TEST_F(TunedCacheTest, StagesChooseForThemselves) {
  if (test_world().size() != 2) GTEST_SKIP() << "two stages";
  const Mesh stages(test_world(), mesh_of(2, 2, 1));
  const std::string mine = fmt::format("choice of stage {}", stages.stage());
  {
    TunedChoices choices;
    TunedCache cache(test_world(), stages, choices, this->cache(), kMachine);
    const TunedChoices::AllRanks together(choices);
    EXPECT_EQ(choices.choose("a", mine), mine);
    if (stages.stage() == 1) choices.choose("b", mine);
    cache.save();
  }
  TunedChoices choices;
  TunedCache cache(test_world(), stages, choices, this->cache(), kMachine);
  EXPECT_EQ(choice(choices, "a"), mine);
  EXPECT_EQ(choice(choices, "b"), stages.stage() == 1 ? mine : "none");
  choices.refuse("a");
  cache.save();
  TunedChoices afresh;
  const TunedCache without_a(test_world(), stages, afresh, this->cache(), kMachine);
  EXPECT_EQ(afresh.find("a"), nullptr);
}

/// Otherwise one rank would choose in the next run, and the other would not take part.
TEST_F(TunedCacheTest, WorkOfEachRankThatSplitsLayersIsKept) {
  if (test_world().size() != 2) GTEST_SKIP() << "two slices";
  const Mesh slices(test_world(), mesh_of(2, 1, 2));
  {
    TunedChoices choices;
    TunedCache cache(test_world(), slices, choices, this->cache(), kMachine);
    choose(choices, is_first() ? "product and bias" : "product");
    cache.save();
  }
  TunedChoices choices;
  const TunedCache cache(test_world(), slices, choices, this->cache(), kMachine);
  EXPECT_NE(choices.find("product and bias"), nullptr);
  EXPECT_NE(choices.find("product"), nullptr);
}

TEST_F(TunedCacheTest, StagesAndRunsWithoutThemShareAFile) {
  if (test_world().size() != 2) GTEST_SKIP() << "two stages";
  const Mesh stages(test_world(), mesh_of(2, 2, 1));
  TunedChoices of_stage;
  TunedCache cache_of_stage(test_world(), stages, of_stage, cache(), kMachine);
  of_stage.choose("a", fmt::format("choice of stage {}", stages.stage()));
  cache_of_stage.save();
  TunedChoices whole;
  TunedCache cache_of_whole(test_world(), mesh_, whole, cache(), kMachine);
  EXPECT_EQ(whole.find("a"), nullptr);
  choose(whole, "a");
  choose(whole, "b");
  cache_of_whole.save();
  test_world().barrier();
  TunedChoices again;
  const TunedCache cache_again(test_world(), stages, again, cache(), kMachine);
  EXPECT_EQ(choice(again, "a"), fmt::format("choice of stage {}", stages.stage()));
  EXPECT_EQ(choice(again, "b"), "choice of rank 0");
}

/// Of jobs that save at the same time: some choice may be lost, the file is never damaged.
TEST_F(TunedCacheTest, JobsThatSaveAtOnceLeaveAWholeFile) {
  if (test_world().size() == 1) GTEST_SKIP() << "one rank";
  const auto job = test_world().split(test_world().rank());  // each rank is a job of its own
  const Mesh alone(*job, MeshShape{});
  const CapturedLog log;
  for (int i = 0; i < 30; ++i) {
    TunedChoices choices, read;
    TunedCache cache(*job, alone, choices, this->cache(), kMachine);
    choices.choose(fmt::format("work {} of {}", i, test_world().rank()), "x");
    cache.save();
    const TunedCache again(*job, alone, read, this->cache(), kMachine);
  }
  EXPECT_EQ(occurrences(log.text(), "not kept"), 0);
  EXPECT_EQ(occurrences(log.text(), "afresh"), 0);
  test_world().barrier();
  EXPECT_EQ(files().size(), 1u);
}

TEST(TunedCacheFolder, FollowsTheXdgSpecification) {
  ScopedEnvironment environment;
  environment.set("XDG_CACHE_HOME", "/c");
  environment.set("HOME", "/h");
  EXPECT_EQ(default_tune_cache(), "/c/ddptrain");
  environment.set("XDG_CACHE_HOME", "relative");
  EXPECT_EQ(default_tune_cache(), "/h/.cache/ddptrain");
  environment.set("XDG_CACHE_HOME", std::nullopt);
  EXPECT_EQ(default_tune_cache(), "/h/.cache/ddptrain");
  environment.set("HOME", std::nullopt);
  EXPECT_EQ(default_tune_cache(), "");
}

}  // namespace
}  // namespace ddptrain
