#include "runtime/diagnostics/watchdog.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/core/process/signal_requests.h"
#include "runtime/diagnostics/flight_record.h"
#include "runtime/diagnostics/peer_link.h"

namespace ddptrain {
namespace {

using namespace std::chrono_literals;
using testing::ExitedWithCode;

constexpr double kTimeout = 0.2;
constexpr auto kForEver = 10min;

/// Processes that end are started anew: they have threads.
class WatchdogTest : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    folder = testing::TempDir() + "watchdog-test";
    std::filesystem::remove_all(folder);
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  WatchdogOptions options(double timeout = kTimeout) const { return {timeout, folder.string()}; }

  std::filesystem::path folder;
  std::shared_ptr<Watch> watch = std::make_shared<Watch>();
};
using WatchdogDeathTest = WatchdogTest;

/// Seconds that a watchdog has counted, by its health checks: one at its start, five a tenth of a second apart, and one
/// each second from then on, half a second late at most. What holds up the watchdog holds up this clock as well.
class WatchdogClock {
 public:
  explicit WatchdogClock(
      Watch& watch, const std::function<void()>& each = [] {})
      : check_(watch, [this, each] {
          each();
          ++checks_;
          return std::string();
        }) {}

  /// Until the next check.
  void tick() const { wait_for_check(checks_ + 1); }
  void wait_at_least(int seconds) const { wait_for_check(std::max(checks_.load(), 5) + 1 + seconds); }

 private:
  void wait_for_check(int check) const {
    while (checks_ < check) std::this_thread::sleep_for(1ms);
  }

  std::atomic<int> checks_ = 0;
  Watch::HealthCheck check_;
};

TEST_F(WatchdogDeathTest, EndsAWaitThatIsTooLong) {
  const auto wait = [&] {
    const Watchdog watchdog("tester", 3, options(), watch);
    watch->queued("all-reduce", 12);
    const Watch::Wait waiting(*watch, "all-reduce");
    std::this_thread::sleep_for(kForEver);
  };
  EXPECT_EXIT(wait(), ExitedWithCode(kTimeoutExitCode),
              "tester: rank 3 .* has been waiting in all-reduce \\(collective 1\\) for .* There is no other rank");
  std::vector<nlohmann::json> lines;
  std::ifstream file(folder / "rank3.jsonl");
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["event"], "flight");
  EXPECT_EQ(lines[0]["reason"], "timeout");
  EXPECT_EQ(lines[0]["waiting_for"], "all-reduce");
  EXPECT_EQ(lines[1]["event"], "collective");
  EXPECT_TRUE(lines[1]["finished"].is_null());
}

TEST_F(WatchdogDeathTest, WaitsThreeTimesAsLongUntilTheFirstStepHasEnded) {
  const auto wait = [&](std::uint64_t steps) {
    const WatchdogClock clock(*watch);
    const Watchdog watchdog("tester", 0, options(3.0), watch);
    watch->add_steps(steps);
    {
      const Watch::Wait waiting(*watch, "others");
      clock.wait_at_least(4);
    }
    std::exit(0);
  };
  EXPECT_EXIT(wait(0), ExitedWithCode(0), "");
  EXPECT_EXIT(wait(1), ExitedWithCode(0), "");  // its sums may be under way
  EXPECT_EXIT(wait(2), ExitedWithCode(kTimeoutExitCode), "waiting for others");
}

TEST_F(WatchdogTest, LeavesLongComputationsAlone) {
  const WatchdogClock clock(*watch);
  const Watchdog watchdog("tester", 0, options(1.0), watch);
  watch->add_steps(2);
  clock.wait_at_least(2);
}

TEST_F(WatchdogTest, LeavesManyShortWaitsAlone) {
  const WatchdogClock clock(*watch);
  const Watchdog watchdog("tester", 0, options(3.0), watch);
  watch->add_steps(2);
  const Watch::Wait outer(*watch, "outer");
  for (int i = 0; i < 10; ++i) {
    const Watch::Wait waiting(*watch, "others");
    clock.tick();
  }
}

TEST_F(WatchdogTest, TheStepsOfADeviceAreProgress) {
  std::atomic<std::uint64_t> ended = 1;
  const WatchdogClock clock(*watch, [&] { ++ended; });
  const Watchdog watchdog("tester", 0, options(3.0), watch);
  watch->set_device_steps(reinterpret_cast<const std::uint64_t*>(&ended));
  const Watch::Wait waiting(*watch, "the device");
  clock.wait_at_least(4);
}

TEST_F(WatchdogTest, ZeroIsNoLimit) {
  const WatchdogClock clock(*watch);
  const Watchdog watchdog("tester", 0, options(0.0), watch);
  const Watch::Wait waiting(*watch, "others");
  clock.wait_at_least(1);
}

/// Each NCCL communicator has a check: neither a later one nor the end of another replaces it.
TEST_F(WatchdogDeathTest, EndsWhatIsIllByAnyCheck) {
  const auto fall_ill = [&] {
    const Watchdog watchdog("tester", 0, options(), watch);
    const auto well = [] { return std::string(); };
    std::optional<Watch::HealthCheck> earlier(std::in_place, *watch, well);
    const Watch::HealthCheck ill(*watch, [] { return std::string("A collective failed."); });
    const Watch::HealthCheck later(*watch, well);
    earlier.reset();
    std::this_thread::sleep_for(kForEver);
  };
  EXPECT_EXIT(fall_ill(), ExitedWithCode(1), "tester: A collective failed.");
}

/// A rank that hangs outside of MPI waits for nobody, and no step comes to an end.
TEST_F(WatchdogDeathTest, EndsWhatDoesNotHeedASignal) {
  const auto hang = [&](const char* phase, double timeout) {
    const SignalRequests signals;
    const WatchdogClock clock(*watch);
    const Watchdog watchdog("tester", 0, {timeout, folder.string(), 1.0}, watch);
    const Watch::Phase hanging(*watch, phase);
    raise(SIGTERM);
    clock.wait_at_least(2);
    std::exit(0);
  };
  const char* message = "rank 0 .* busy with its own work for .* although SIGTERM asked it to end";
  EXPECT_EXIT(hang("training", 600.0), ExitedWithCode(kTimeoutExitCode), message);
  EXPECT_TRUE(std::filesystem::exists(folder / "rank0.jsonl"));
  EXPECT_EXIT(hang("training", 0.0), ExitedWithCode(kTimeoutExitCode), message);
  EXPECT_EXIT(hang("checkpoint", 600.0), ExitedWithCode(0), "");  // it may take long to write
  EXPECT_EXIT(hang("checkpoint", 1.0), ExitedWithCode(kTimeoutExitCode), message);
}

TEST_F(WatchdogTest, LeavesAloneWhatMovesAfterASignal) {
  const SignalRequests signals;
  const WatchdogClock clock(*watch, [&] { watch->add_steps(1); });
  const Watchdog watchdog("tester", 0, {600.0, folder.string(), 2.0}, watch);
  const Watch::Phase training(*watch, "training");
  raise(SIGTERM);
  clock.wait_at_least(3);
}

TEST_F(WatchdogDeathTest, EndsAProcessThatMpiDoesNotEnd) {
  const auto hang = [&] {
    const Watchdog watchdog("tester", 0, options(600.0), watch);
    watch->set_ending(7);
    std::this_thread::sleep_for(kForEver);
  };
  EXPECT_EXIT(hang(), ExitedWithCode(7), "MPI could not end the job");
}

/// Records without --flight: others can neither guess the folder's name nor look into it.
TEST_F(WatchdogDeathTest, WritesIntoAFolderThatNobodyCouldPrepare) {
  const std::filesystem::path victim = folder / "victim";
  std::filesystem::create_directories(victim);
  const auto wait = [&] {
    setenv("TMPDIR", folder.c_str(), 1);
    std::filesystem::create_symlink(victim, folder / ("tester-flight-" + std::to_string(getpid())));
    const Watchdog watchdog("tester", 3, {kTimeout, ""}, watch);
    const Watch::Wait waiting(*watch, "others");
    std::this_thread::sleep_for(kForEver);
  };
  EXPECT_EXIT(wait(), ExitedWithCode(kTimeoutExitCode), "Flight records: .*/tester-flight-");
  EXPECT_TRUE(std::filesystem::is_empty(victim));
  int records = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!std::filesystem::exists(entry.path() / "rank3.jsonl")) continue;
    EXPECT_EQ(entry.status().permissions(), std::filesystem::perms::owner_all) << entry.path();
    ++records;
  }
  EXPECT_EQ(records, 1);
}

class FlightRecordTest : public WatchdogTest {
 protected:
  void SetUp() override {
    WatchdogTest::SetUp();
    std::filesystem::create_directories(folder);
  }

  bool writes(const char* into) const { return write_flight_record(folder / into / "rank0.jsonl", {}); }
  std::string text(const char* file) const {
    std::ifstream in(folder / file);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

TEST_F(FlightRecordTest, WritesThroughNoLink) {
  std::filesystem::create_directory(folder / "shared");
  std::ofstream(folder / "precious") << "precious";
  std::filesystem::create_symlink(folder / "precious", folder / "shared" / "rank0.jsonl");
  EXPECT_TRUE(writes("shared"));
  EXPECT_EQ(text("precious"), "precious");
  EXPECT_NE(text("shared/rank0.jsonl"), "");

  std::filesystem::remove(folder / "shared" / "rank0.jsonl");
  std::filesystem::create_hard_link(folder / "precious", folder / "shared" / "rank0.jsonl");
  EXPECT_TRUE(writes("shared"));
  EXPECT_EQ(text("precious"), "precious");
}

/// In a folder such as /tmp, users cannot remove each other's files.
TEST_F(FlightRecordTest, WritesThroughNoLinkOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can act as two users";
  namespace fs = std::filesystem;
  const fs::path shared = folder / "shared", link = shared / "rank0.jsonl";
  fs::create_directory(shared);
  fs::permissions(folder, fs::perms::all);
  fs::permissions(shared, fs::perms::all | fs::perms::sticky_bit);
  std::ofstream(folder / "precious") << "precious";
  fs::permissions(folder / "precious", fs::perms::all);
  fs::create_symlink(folder / "precious", link);
  ASSERT_EQ(chown(shared.c_str(), 1, 1), 0);
  ASSERT_EQ(lchown(link.c_str(), 1, 1), 0);
  ASSERT_EQ(seteuid(2), 0);
  const bool reached = eaccess(shared.c_str(), W_OK) == 0;
  const bool written = writes("shared");
  ASSERT_EQ(seteuid(0), 0);
  if (!reached) GTEST_SKIP() << "another user does not reach " << shared;
  EXPECT_FALSE(written);
  EXPECT_EQ(text("precious"), "precious");
}

TEST_F(FlightRecordTest, ReplacesAnOlderRecord) {
  EXPECT_TRUE(writes("new/folder"));
  EXPECT_TRUE(writes("new/folder"));
  EXPECT_EQ(std::ranges::count(text("new/folder/rank0.jsonl"), '\n'), 1);
}

/// Two ranks give up at the same time. The rank that hangs answers both, also the one whose question comes after it has
/// written its record: that one may be the rank that says who is missing.
TEST_F(WatchdogDeathTest, AnswersEveryRankThatAsks) {
  const auto hang = [&] {
    PeerLink first, last;
    Watchdog watchdog("tester", 1, options(600.0), watch);
    const std::vector<std::string> addresses = {first.addresses(), watchdog.addresses(), last.addresses()};
    const std::vector<std::string> hosts = {"h", "h", "h"};
    first.connect(11, 0, addresses, hosts);
    last.connect(11, 2, addresses, hosts);
    watchdog.meet(WatchedJob{11, 1, addresses, hosts, {"", "", ""}, {0, 0, 0}});
    const auto hear = [](PeerLink& link, Beat::Kind kind) {
      for (;;) {
        const std::optional<Beat> heard = link.receive();
        if (heard.has_value() && heard->kind == kind) return;
        std::this_thread::sleep_for(1ms);
      }
    };
    Beat question;
    question.kind = Beat::Kind::gives_up;
    last.send(1, question);
    hear(last, Beat::Kind::written);
    while (first.receive().has_value()) continue;
    first.send(1, question);
    hear(first, Beat::Kind::written);
    _exit(0);
  };
  EXPECT_EXIT(hang(), ExitedWithCode(0), "");
  EXPECT_TRUE(std::filesystem::exists(folder / "rank1.jsonl"));
}

TEST(PeerLink, CarriesBeatsOfTheSameJobAlone) {
  PeerLink first, second, stranger;
  ASSERT_GE(first.descriptor(), 0);
  const std::vector<std::string> addresses = {first.addresses(), second.addresses()}, hosts = {"h", "h"};
  first.connect(11, 0, addresses, hosts);
  second.connect(11, 1, addresses, hosts);
  stranger.connect(12, 1, addresses, hosts);
  Beat beat;
  beat.steps = 5;
  stranger.send(0, beat);
  beat.steps = 6;
  second.send(0, beat);
  std::optional<Beat> heard;
  for (int i = 0; i < 10'000 && !heard.has_value(); ++i) {
    std::this_thread::sleep_for(1ms);
    heard = first.receive();
  }
  ASSERT_TRUE(heard.has_value());
  EXPECT_EQ(heard->rank, 1);
  EXPECT_EQ(heard->steps, 6u);
}

}  // namespace
}  // namespace ddptrain
