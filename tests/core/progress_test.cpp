#include "runtime/core/process/progress.h"

#include <gtest/gtest.h>

namespace ddptrain {
namespace {

ProgressState half_way() {
  ProgressState state;
  state.steps = 800;
  state.steps_per_epoch = 160;
  state.step = 400;
  state.unit = "images";
  state.steps_per_second = 10.0;
  state.units_per_second = 1'234'567.0;
  state.loss = 0.43214;
  state.phase = "training";
  return state;
}

TEST(ProgressLine, SaysHowFarTrainingIs) {
  ProgressState state = half_way();
  EXPECT_EQ(progress_line(state, 200),
            "[##########..........] epoch 3/5  step 400/800  loss 0.4321  1.23 M images/s  0:40 left");
  state.step = 800;
  state.units_per_second = 45.6;
  EXPECT_EQ(progress_line(state, 200),
            "[####################] epoch 5/5  step 800/800  loss 0.4321  46 images/s  0:00 left");
  state.step = 0;
  state.loss.reset();
  state.steps_per_second = 0.001;
  EXPECT_EQ(progress_line(state, 200), "[....................] epoch 1/5  step 0/800  46 images/s  9 d 6 h left");
}

TEST(ProgressLine, SaysNothingThatIsNotKnown) {
  ProgressState state = half_way();
  state.step = 0;
  state.steps_per_second = 0.0;
  state.seconds = 3.2;
  EXPECT_EQ(progress_line(state, 200), "[....................] epoch 1/5  step 0/800  first step 3 s");
  state.steps = 0;
  state.phase = "start-up";
  EXPECT_EQ(progress_line(state, 200), "start-up 3 s");
}

TEST(ProgressLine, NamesWhatGoesOnBesideTraining) {
  ProgressState state = half_way();
  state.phase = "evaluation";
  state.part = {3, 20};
  state.seconds = 1.0;
  EXPECT_EQ(progress_line(state, 200), "[##########..........] epoch 3/5  step 400/800  evaluation 3/20 1 s");
  state.phase = "checkpoint";
  state.part = {};
  EXPECT_EQ(progress_line(state, 200), "[##########..........] epoch 3/5  step 400/800  checkpoint 1 s");
}

TEST(ProgressLine, IsNoWiderThanTheTerminal) {
  EXPECT_EQ(progress_line(half_way(), 40).size(), 40u);
  EXPECT_EQ(progress_line(half_way(), 0), "");
}

}  // namespace
}  // namespace ddptrain
