#include "runtime/train/run/progress_log.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <regex>
#include <string>
#include <thread>

#include "tests/support/captured_log.h"
#include "tests/support/says.h"

namespace ddptrain {
namespace {

using std::chrono::milliseconds;

/// What the log gets in `phase`, part 3 of `parts`, while `steps` more are made behind step 100 of 800.
std::string logged(const char* phase, std::uint64_t steps, int parts = 0, milliseconds time = milliseconds(300)) {
  const auto watch = std::make_shared<Watch>();
  watch->set_steps(100);
  const Watch::Phase in_phase(*watch, phase);
  if (parts > 0) watch->set_part(3, parts);
  const CapturedLog captured;
  {
    const ProgressLog log(*watch, {.first = 100, .steps = 800, .units_per_step = 50.0, .unit = "images"},
                          milliseconds(200));
    watch->add_steps(steps);
    std::this_thread::sleep_for(time);
  }
  return captured.text();
}

TEST(ProgressLog, SaysHowFastAndHowFarTrainingIs) {
  const std::string text = logged("training", 50);
  EXPECT_TRUE(std::regex_search(text, std::regex(R"(Step 150 of 800, [1-9][\d,.]* images/s, 0:00:\d\d left)"))) << text;
}

TEST(ProgressLog, NamesWhatGoesOnBesideTraining) {
  EXPECT_CONTAINS(logged("evaluation", 0), "Step 100 of 800, evaluation\n");
  EXPECT_CONTAINS(logged("evaluation", 0, 20), "Step 100 of 800, evaluation (3 of 20)\n");
}

TEST(ProgressLog, StepsOfMeasurementsAfterTrainingDoNotCount) {
  EXPECT_CONTAINS(logged("training", 900), "Step 800 of 800, training\n");
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
