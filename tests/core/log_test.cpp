#include "runtime/core/log.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <regex>

#include "tests/support/says.h"

namespace ddptrain {
namespace {

/// What standard error gets when each level says its name once.
std::string logged(const std::string& level, int rank) {
  testing::internal::CaptureStderr();
  init_logging(level, rank);
  spdlog::debug("<debug>");
  spdlog::info("<info>");
  spdlog::warn("<warn>");
  spdlog::error("<error>");
  spdlog::default_logger()->flush();
  return testing::internal::GetCapturedStderr();
}

std::string levels_in(const std::string& text) {
  std::string found;
  for (const char* level : {"<debug>", "<info>", "<warn>", "<error>"}) {
    if (text.find(level) != std::string::npos) found += level;
  }
  return found;
}

TEST(Log, RankZeroLogsFromTheLevelUp) {
  EXPECT_EQ(levels_in(logged("debug", 0)), "<debug><info><warn><error>");
  EXPECT_EQ(levels_in(logged("info", 0)), "<info><warn><error>");
  EXPECT_EQ(levels_in(logged("warn", 0)), "<warn><error>");
  EXPECT_EQ(levels_in(logged("error", 0)), "<error>");
  EXPECT_EQ(levels_in(logged("off", 0)), "");
}

TEST(Log, OtherRanksLogWarningsUnlessDebugging) {
  EXPECT_EQ(levels_in(logged("info", 3)), "<warn><error>");
  EXPECT_EQ(levels_in(logged("debug", 3)), "<debug><info><warn><error>");
  EXPECT_EQ(levels_in(logged("error", 3)), "<error>");
}

TEST(Log, LinesCarryTimeLevelAndRank) {
  const std::string text = logged("info", 12);
  EXPECT_TRUE(std::regex_search(text, std::regex(R"(^\[\d\d:\d\d:\d\d\.\d{3}\] \[warning\] \[rank 12\] <warn>\n)")))
      << text;
}

TEST(Log, UnknownLevelIsTheUsersMistake) {
  const std::string message = error_message([] { init_logging("loud", 0); });
  EXPECT_CONTAINS(message, "--log-level loud");
  EXPECT_CONTAINS(message, "debug, info");
}

}  // namespace
}  // namespace ddptrain
