#include "runtime/train/run/progress_log.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <thread>

namespace ddptrain {
namespace {

using std::chrono::milliseconds;

/// What the log gets while `steps` are added to `watch`, of 800.
std::string logged(const std::shared_ptr<Watch>& watch, std::uint64_t steps, milliseconds time) {
  std::ostringstream text;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text)));
  {
    const ProgressLog log(*watch, {.first = 100, .steps = 800, .units_per_step = 50.0, .unit = "images"},
                          milliseconds(200));
    watch->add_steps(steps);
    std::this_thread::sleep_for(time);
  }
  spdlog::set_default_logger(before);
  return text.str();
}

TEST(ProgressLog, SaysHowFastAndHowFarTrainingIs) {
  const auto watch = std::make_shared<Watch>();
  watch->set_steps(100);
  const Watch::Phase phase(*watch, "training");
  const std::string text = logged(watch, 50, milliseconds(300));
  std::smatch found;
  ASSERT_TRUE(std::regex_search(text, found, std::regex(R"(Step 150 of 800, ([\d,]+) images/s, 0:00:(\d\d) left)")))
      << text;
  const double rate = std::stod(std::regex_replace(found[1].str(), std::regex(","), ""));  // 50 steps in 0.2 s or more
  EXPECT_LE(rate, 12'500.0);
  EXPECT_GE(std::stod(found[2]), 2.0) << "650 steps are left";
}

TEST(ProgressLog, NamesWhatGoesOnBesideTraining) {
  const auto watch = std::make_shared<Watch>();
  watch->set_steps(100);
  const Watch::Phase phase(*watch, "evaluation");
  EXPECT_NE(logged(watch, 0, milliseconds(300)).find("Step 100 of 800, evaluation\n"), std::string::npos);
  watch->set_part(3, 20);
  EXPECT_NE(logged(watch, 0, milliseconds(300)).find("Step 100 of 800, evaluation (3 of 20)\n"), std::string::npos);
}

TEST(ProgressLog, IsSilentInShortRuns) { EXPECT_EQ(logged(std::make_shared<Watch>(), 10, milliseconds(0)), ""); }

}  // namespace
}  // namespace ddptrain
