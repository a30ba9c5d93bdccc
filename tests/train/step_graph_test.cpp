#include "runtime/train/step/step_graph.h"

#include <gtest/gtest.h>

#include "tests/train/fake_device.h"

namespace ddptrain {
namespace {

/// Runs steps in portions; returns the step numbers that were worked on.
std::vector<std::uint64_t> steps_run(bool graphs, bool enabled, const std::vector<std::uint64_t>& portions,
                                     std::size_t* captures = nullptr) {
  FakeDevice device(graphs);
  StepState state;
  std::vector<std::uint64_t> seen;
  StepGraph graph(device, &state,
                  [&](std::uint32_t offset) {
                    if (!device.capturing()) seen.push_back(state.step + offset);
                  },
                  {.enabled = enabled, .eager_steps = 3, .unroll = 4});
  for (const std::uint64_t portion : portions) graph.run(portion);
  if (captures != nullptr) *captures = device.log.size();
  return seen;
}

TEST(StepGraph, EveryStepOnceInOrderWithAndWithoutGraphs) {
  std::vector<std::uint64_t> expected(41);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = i;
  for (const auto& portions : std::vector<std::vector<std::uint64_t>>{{41}, {1, 2, 38}, {2, 0, 9, 30}, {3, 4, 4, 30}}) {
    for (const bool graphs : {false, true}) {
      for (const bool enabled : {false, true}) EXPECT_EQ(steps_run(graphs, enabled, portions), expected);
    }
  }
}

TEST(StepGraph, LongStepsHaveOneGraphOfOneStep) {
  for (const auto& [step_seconds, captures] : {std::pair{0.03, 2u}, std::pair{0.05, 1u}}) {
    FakeDevice device(true);
    StepState state;
    std::vector<std::uint64_t> seen;
    StepGraph graph(device, &state,
                    [&](std::uint32_t offset) {
                      if (!device.capturing()) seen.push_back(state.step + offset);
                    },
                    {.eager_steps = 0, .unroll = 4});
    graph.prepare(step_seconds);
    graph.run(9);
    EXPECT_EQ(device.log.size(), captures) << step_seconds;
    EXPECT_EQ(seen, (std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8})) << step_seconds;
  }
}

TEST(StepGraph, CapturesTwiceAfterTheEagerSteps) {
  std::size_t captures = 0;
  steps_run(true, true, {3}, &captures);
  EXPECT_EQ(captures, 0u);
  steps_run(true, true, {3, 50, 50}, &captures);
  EXPECT_EQ(captures, 2u);
  steps_run(true, false, {103}, &captures);
  EXPECT_EQ(captures, 0u);
}

}  // namespace
}  // namespace ddptrain
