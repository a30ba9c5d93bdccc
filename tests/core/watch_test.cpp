#include "runtime/core/process/watch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace ddptrain {
namespace {

std::vector<CollectiveRecord> records_of(const Watch& watch) {
  std::vector<CollectiveRecord> found;
  for (const CollectiveRecord& each : watch.records()) {
    if (each.sequence != 0) found.push_back(each);
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.sequence < b.sequence; });
  return found;
}

TEST(Watch, TheInnermostWaitCounts) {
  Watch watch;
  EXPECT_EQ(watch.waiting_for(), nullptr);
  {
    const Watch::Wait outer(watch, "outer");
    const std::uint64_t changes = watch.changes();
    {
      const Watch::Wait inner(watch, "inner");
      EXPECT_STREQ(watch.waiting_for(), "inner");
      EXPECT_GT(watch.changes(), changes);
    }
    EXPECT_STREQ(watch.waiting_for(), "outer");
    EXPECT_GT(watch.changes(), changes + 1);
  }
  EXPECT_EQ(watch.waiting_for(), nullptr);
}

TEST(Watch, PhasesNest) {
  Watch watch;
  EXPECT_STREQ(watch.phase(), "start-up");
  const Watch::Phase training(watch, "training");
  {
    const Watch::Phase evaluation(watch, "evaluation");
    EXPECT_STREQ(watch.phase(), "evaluation");
  }
  EXPECT_STREQ(watch.phase(), "training");
}

TEST(Watch, RecordsWhatACollectiveWentThrough) {
  Watch watch;
  watch.add_steps(5);
  watch.set_bucket(3);
  const std::uint64_t sequence = watch.queued("all-reduce", 100);
  watch.set_bucket(-1);
  EXPECT_EQ(sequence, 1u);
  CollectiveRecord record = records_of(watch).at(0);
  EXPECT_EQ(std::string(record.name), "all-reduce");
  EXPECT_EQ(record.bucket, 3);
  EXPECT_EQ(record.bytes, 100u);
  EXPECT_EQ(record.step, 5u);
  EXPECT_GT(record.queued, 0);
  EXPECT_EQ(record.started, 0);
  EXPECT_EQ(record.finished, 0);
  watch.started(sequence);
  watch.finished(sequence);
  record = records_of(watch).at(0);
  EXPECT_GE(record.started, record.queued);
  EXPECT_GE(record.finished, record.started);
}

TEST(Watch, ACollectiveWaitsAndEnds) {
  Watch watch;
  {
    const Watch::Collective barrier(watch, "barrier", 0);
    EXPECT_STREQ(watch.waiting_for(), "barrier");
    EXPECT_EQ(records_of(watch).at(0).finished, 0);
  }
  EXPECT_EQ(watch.waiting_for(), nullptr);
  EXPECT_GT(records_of(watch).at(0).finished, 0);
}

TEST(Watch, KeepsTheLastOnes) {
  Watch watch;
  for (std::size_t i = 0; i < 3 * Watch::kRecords + 7; ++i) watch.queued("sum", i);
  const auto records = records_of(watch);
  ASSERT_EQ(records.size(), Watch::kRecords);
  EXPECT_EQ(records.front().sequence, 2 * Watch::kRecords + 8);
  EXPECT_EQ(records.back().sequence, 3 * Watch::kRecords + 7);
  watch.finished(1);  // overwritten long ago
  for (const CollectiveRecord& record : records_of(watch)) EXPECT_EQ(record.finished, 0);
}

TEST(Watch, ADeviceThatHasCaughtUpHasFinishedAll) {
  Watch watch;
  for (std::size_t i = 0; i < Watch::kRecords + 9; ++i) watch.queued("sum", i);
  watch.all_finished();
  watch.queued("sum", 0);
  const auto records = records_of(watch);
  for (std::size_t i = 0; i + 1 < records.size(); ++i) EXPECT_GT(records[i].finished, 0) << records[i].sequence;
  EXPECT_EQ(records.back().finished, 0);
}

TEST(Watch, TheFirstStepOfAResumedRunIsNotOneOfBefore) {
  Watch watch;
  watch.set_steps(7);
  watch.add_steps(1);
  EXPECT_FALSE(watch.first_step_has_ended()) << "nobody counts, and its sums may be under way";
  watch.add_steps(1);
  EXPECT_TRUE(watch.first_step_has_ended());
  std::uint64_t ended = 7;
  watch.set_device_steps(&ended);
  EXPECT_FALSE(watch.first_step_has_ended());
  ended = 8;
  EXPECT_TRUE(watch.first_step_has_ended());
}

}  // namespace
}  // namespace ddptrain
