#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/train/step/trainer.h"

namespace ddptrain {

/// Steps of a trainer that record when their parts begin and end. They are one graph if the trainer uses graphs.
class TracedSteps {
 public:
  /// A step must have run before. The trainer outlives the object.
  TracedSteps(Trainer& trainer, std::uint32_t steps, bool communicates);
  /// Runs the steps once. Collective if they communicate; waits.
  std::vector<TimelineSpan> run();

 private:
  void queue();

  Trainer& trainer_;
  Device& device_;
  std::uint32_t steps_;
  StepGraph::Step step_;
  std::unique_ptr<Timeline> timeline_;
  std::unique_ptr<Graph> graph_;
};

/// Runs `steps` steps and returns the spans of their parts. Collective; waits.
std::vector<TimelineSpan> trace_steps(Trainer& trainer, std::uint32_t steps);

}  // namespace ddptrain
