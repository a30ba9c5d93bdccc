#include "runtime/train/step/step_graph.h"

#include <gtest/gtest.h>

#include <numeric>
#include <optional>
#include <string>

#include "runtime/device/queueing.h"
#include "tests/train/fake_device.h"

namespace ddptrain {
namespace {

struct Ran {
  std::vector<std::uint64_t> steps;  ///< The numbers of the steps that were worked on.
  std::size_t captures;
};

/// Runs steps in portions. A graph of several steps has 4.
Ran run_steps(bool graphs, bool enabled, const std::vector<std::uint64_t>& portions, bool several = true) {
  FakeDevice device(graphs);
  StepState state;
  std::vector<std::uint64_t> seen;
  StepGraph graph(device, &state,
                  [&](std::uint32_t offset) {
                    if (!device.capturing()) seen.push_back(state.step + offset);
                  },
                  {.enabled = enabled, .eager_steps = 3, .unroll = 4});
  for (const std::uint64_t portion : portions) {
    graph.run(portion);
    graph.prepare(several);
  }
  return {seen, device.log.size()};
}

std::vector<std::uint64_t> first_steps(std::uint64_t count) {
  std::vector<std::uint64_t> steps(count);
  std::iota(steps.begin(), steps.end(), std::uint64_t{0});
  return steps;
}

TEST(StepGraph, EveryStepOnceInOrderWithAndWithoutGraphs) {
  for (const auto& portions : std::vector<std::vector<std::uint64_t>>{{41}, {1, 2, 38}, {2, 0, 9, 30}, {3, 4, 4, 30}}) {
    for (const bool graphs : {false, true}) {
      for (const bool enabled : {false, true}) {
        EXPECT_EQ(run_steps(graphs, enabled, portions).steps, first_steps(41));
      }
    }
  }
}

TEST(StepGraph, CapturesTwiceAfterTheEagerSteps) {
  EXPECT_EQ(run_steps(true, true, {2}).captures, 0u);
  EXPECT_EQ(run_steps(true, true, {3, 50, 50}).captures, 2u);
  EXPECT_EQ(run_steps(true, false, {103}).captures, 0u);
}

TEST(StepGraph, WithoutAGraphOfSeveralStepsTheOtherOneServes) {
  const Ran ran = run_steps(true, true, {3, 9}, false);
  EXPECT_EQ(ran.captures, 1u);
  EXPECT_EQ(ran.steps, first_steps(12));
}

class FakeGpu final : public FakeDevice {
 public:
  using FakeDevice::FakeDevice;
  DeviceKind kind() const override { return DeviceKind::cuda; }
};

/// For what the watch says that the host waits, while it queues each of four eager steps.
std::vector<std::optional<std::string>> waits_of_eager_steps(FakeDevice& device) {
  std::vector<std::optional<std::string>> waits;
  StepState state;
  const auto note = [&](std::uint32_t) {
    const char* const wait = device.watch().waiting_for();
    waits.push_back(wait == nullptr ? std::nullopt : std::optional<std::string>(wait));
  };
  StepGraph(device, &state, note, {.enabled = false, .eager_steps = 3}).run(4);
  EXPECT_EQ(device.watch().waiting_for(), nullptr);
  return waits;
}

/// Otherwise a watchdog takes a host for busy that waits in a launch, since the queue is full of work that waits for
/// other ranks.
TEST(StepGraph, QueueingAnEagerStepIsAWaitOnAGpuOnly) {
  FakeGpu gpu;
  FakeDevice cpu;
  EXPECT_EQ(waits_of_eager_steps(gpu), std::vector(4, std::optional<std::string>(Queueing::kQueueWait)));
  EXPECT_EQ(waits_of_eager_steps(cpu), std::vector(4, std::optional<std::string>()));
}

}  // namespace
}  // namespace ddptrain
