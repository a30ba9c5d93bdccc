#include "runtime/train/run/progress_log.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <memory>
#include <regex>
#include <string>
#include <thread>

#include "runtime/core/log.h"
#include "tests/support/captured_log.h"
#include "tests/support/says.h"
#include "tests/support/terminal.h"

namespace ddptrain {
namespace {

using std::chrono::milliseconds;

ProgressLog::Plan plan() {
  return {.first = 100, .steps = 800, .steps_per_epoch = 100, .epochs = 8, .units_per_step = 50.0, .unit = "images"};
}

/// What the log gets in `phase`, part 3 of `parts`, while `steps` more are made behind step 100 of 800.
std::string logged(const char* phase, std::uint64_t steps, int parts = 0, milliseconds time = milliseconds(300)) {
  const auto watch = std::make_shared<Watch>();
  watch->set_steps(100);
  const Watch::Phase in_phase(*watch, phase);
  if (parts > 0) watch->set_part(3, parts);
  const CapturedLog captured;
  {
    const ProgressLog log(*watch, plan(), milliseconds(200));
    watch->add_steps(steps);
    std::this_thread::sleep_for(time);
  }
  return captured.text();
}

TEST(ProgressLog, SaysHowFastAndHowFarTrainingIs) {
  const std::string text = logged("training", 50);
  EXPECT_TRUE(std::regex_search(text, std::regex(R"(Step 150/800, epoch 2/8, [1-9][\d,.]* images/s, 0:00:\d\d left)")))
      << text;
}

TEST(ProgressLog, SaysTheLossOfLoggedSteps) {
  const auto watch = std::make_shared<Watch>();
  const Watch::Phase in_phase(*watch, "training");
  const CapturedLog captured;
  ProgressLog::Plan each = plan();
  each.line_per_logged_step = true;
  ProgressLog(*watch, each, milliseconds(10'000)).logged(110, 1.23456, 4.0);
  ProgressLog(*watch, each, milliseconds(10'000)).logged(800, 1.0, 4.0);
  ProgressLog(*watch, plan(), milliseconds(10'000)).logged(120, 1.0, 4.0);
  EXPECT_CONTAINS(captured.text(), "Step 110/800, epoch 2/8, loss 1.2346, 200 images/s, 0:02:52 left\n");
  EXPECT_CONTAINS(captured.text(), "Step 800/800, epoch 8/8, loss 1.0000, 200 images/s\n");
  EXPECT_EQ(captured.text().find("Step 120"), std::string::npos) << captured.text();
}

TEST(ProgressLog, SaysWhatGoesOnBesidesTraining) {
  EXPECT_CONTAINS(logged("evaluation", 0), "Evaluating, after step 100/800\n");
  EXPECT_CONTAINS(logged("evaluation", 0, 20), "Evaluating: batch 3 of 20, after step 100/800\n");
  EXPECT_CONTAINS(logged("checkpoint", 0), "Writing a checkpoint, after step 100/800\n");
  EXPECT_CONTAINS(logged("baseline", 900, 8), "Measuring the scaling efficiency: 3 of at most 8 s of timed steps\n");
}

TEST(ProgressLog, StepsOfMeasurementsAfterTrainingDoNotCount) {
  EXPECT_CONTAINS(logged("training", 900), "Step 800/800, epoch 8/8\n");
}

TEST(ProgressLog, SaysOfWhichStepTheLossIs) {
  const auto watch = std::make_shared<Watch>();
  watch->set_steps(100);
  const Watch::Phase in_phase(*watch, "training");
  const CapturedLog captured;
  {
    ProgressLog log(*watch, plan(), milliseconds(200));
    log.logged(140, 0.5, 4.0);
    watch->add_steps(50);
    std::this_thread::sleep_for(milliseconds(300));
  }
  EXPECT_CONTAINS(captured.text(), "Step 150/800, epoch 2/8, loss 0.5000 (step 140), ");
}

/// A bar of 100 columns after 400 of 800 steps, and messages besides it.
TEST(ProgressLog, ATerminalHasABarThatRewritesItself) {
  const auto watch = std::make_shared<Watch>();
  watch->set_steps(100);
  const Watch::Phase in_phase(*watch, "training");
  const std::shared_ptr<spdlog::logger> before = spdlog::default_logger();
  const Terminal terminal(100);
  init_logging("info", 0);
  std::string text;
  {
    ProgressLog log(*watch, plan(), milliseconds(200));
    log.logged(400, 0.5, 4.0);
    watch->add_steps(300);
    const std::regex bar(R"(\r\[=+ +\] Step 400/800, epoch 4/8, loss 0\.5000, [\d,.]+ images/s, 0:\d\d:\d\d left)");
    for (int i = 0; i < 1000 && !std::regex_search(text, bar); ++i) {
      std::this_thread::sleep_for(milliseconds(10));
      text += terminal.text();
    }
    EXPECT_TRUE(std::regex_search(text, bar)) << text;
  }
  text += terminal.text();
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  EXPECT_EQ(text.substr(text.size() - 4), "\r\x1b[K") << "the bar goes with its run";
  spdlog::set_default_logger(before);
}

TEST(StepRate, CountsTimeOfTrainingUpToTheLastStep) {
  StepRate rate(300);
  rate.note(10.0, 300, false);
  rate.note(12.0, 310, true);
  rate.note(17.0, 310, false);  // an evaluation
  rate.note(19.0, 330, true);
  rate.note(20.0, 330, true);  // the next step goes on
  EXPECT_DOUBLE_EQ(rate.take(), 30.0 / 4.0);
  EXPECT_EQ(rate.take(), 0.0);
  rate.note(21.0, 340, true);
  EXPECT_DOUBLE_EQ(rate.take(), 10.0 / 2.0);
}

TEST(ProgressLog, IsSilentInShortRuns) { EXPECT_EQ(logged("training", 10, 0, milliseconds(0)), ""); }

}  // namespace
}  // namespace ddptrain
