#include "runtime/core/log.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <regex>
#include <string>

#include "tests/support/terminal.h"

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

TEST(Log, MessagesAppearAboveTheStatusLineOfATerminal) {
  const std::shared_ptr<spdlog::logger> before = spdlog::default_logger();
  const Terminal terminal(30);
  init_logging("info", 0);
  ASSERT_NE(status_line(), nullptr);
  EXPECT_EQ(status_line()->columns(), 29u);
  status_line()->set("a status that is longer than the line");
  EXPECT_EQ(terminal.text(), "\ra status that is longer than \x1b[K\r");
  spdlog::info("a message");
  const std::string text = terminal.text();
  EXPECT_EQ(text.find("\r\x1b[K["), 0u) << text;
  EXPECT_LT(text.find("a message"), text.find("\ra status")) << text;
  status_line()->set("");
  EXPECT_EQ(terminal.text(), "\r\x1b[K");
  spdlog::set_default_logger(before);
}

TEST(Log, OtherRanksAndSimpleTerminalsHaveNoStatusLine) {
  const std::shared_ptr<spdlog::logger> before = spdlog::default_logger();
  {
    const Terminal terminal(80, "dumb");
    init_logging("info", 0);
    EXPECT_EQ(status_line(), nullptr);
  }
  const Terminal terminal(80);
  init_logging("info", 1);
  EXPECT_EQ(status_line(), nullptr);
  spdlog::set_default_logger(before);
}

}  // namespace
}  // namespace ddptrain
