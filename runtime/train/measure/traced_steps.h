#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/train/step/trainer.h"

namespace ddptrain {

/// Steps of a trainer that tell when their parts begin and end; as one graph if its steps are graphs.
class TracedSteps {
 public:
  /// A step must have been run before. The trainer outlives this.
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

/// When the parts of `steps` steps began and ended. Collective; waits.
std::vector<TimelineSpan> trace_steps(Trainer& trainer, std::uint32_t steps);

}  // namespace ddptrain
