#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/device/device.h"
#include "runtime/device/timeline.h"
#include "runtime/train/replica/trainer.h"

namespace ddptrain {

/// Steps that record when their parts begin and end. They are one graph if the trainer uses graphs.
class TracedSteps {
 public:
  /// `step` queues one of them, which is a step of this trainer or a part of one. A step must have run before. The
  /// trainer, and what `step` refers to, outlive the object.
  TracedSteps(Trainer& trainer, std::uint32_t steps, StepGraph::Step step);
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

/// On rank 0, the spans of all ranks in Chrome's format (chrome://tracing, https://ui.perfetto.dev): a process per rank
/// with a thread for compute and as many for communication as its spans overlap. Times are microseconds since the first
/// span. The clocks of hosts are aligned at the end of a barrier, to within the latency of the network. Collective.
std::string chrome_trace(const World& world, const std::vector<TimelineSpan>& mine);

/// Seconds from the beginning of a step to the end of its last backward pass, without waits for reductions: the mean
/// over the traced steps. The first step is left out if there are others, because no step precedes it. Error without
/// steps.
double compute_seconds(const std::vector<TimelineSpan>& spans);

}  // namespace ddptrain
