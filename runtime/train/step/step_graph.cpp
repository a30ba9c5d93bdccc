#include "runtime/train/step/step_graph.h"

#include "runtime/core/error.h"
#include "runtime/device/queueing.h"

namespace ddptrain {

StepGraph::StepGraph(Device& device, StepState* state, Step step, const StepGraphOptions& options)
    : device_(device),
      optimizer_(device.get<OptimizerOps>()),
      state_(state),
      step_(std::move(step)),
      enabled_(options.enabled),
      eager_left_(options.eager_steps),
      unroll_(options.unroll) {
  DDP_CHECK(unroll_ > 0, "a graph of no steps");
}

void StepGraph::run(std::uint64_t count) {
  for (; count > 0 && (!enabled_ || eager_left_ > 0); --count) {
    queue_eagerly();
    device_.watch().add_steps(1);
    if (eager_left_ > 0) --eager_left_;
  }
  if (count == 0) return;
  prepare();
  if (!enabled_) {
    run(count);
    return;
  }
  for (; many_ != nullptr && count >= unroll_; count -= unroll_) launch(*many_, unroll_);
  for (; count > 0; --count) launch(*one_, 1);
}

void StepGraph::launch(Graph& graph, std::uint32_t steps) {
  const ProfilerRange range(steps == 1 ? "step" : "graph of steps");
  device_.watch().queued("graph of steps", 0);
  graph.launch();
  device_.watch().add_steps(steps);
}

void StepGraph::prepare(bool several) {
  if (!enabled_ || eager_left_ > 0 || one_ != nullptr) return;
  one_ = device_.capture([this] { queue(1); });
  enabled_ = one_ != nullptr;
  if (enabled_ && several) many_ = device_.capture([this] { queue(unroll_); });
}

void StepGraph::queue_eagerly() {
  const Queueing queueing(device_);
  queue(1);
}

void StepGraph::queue(std::uint32_t steps) {
  for (std::uint32_t i = 0; i < steps; ++i) {
    const ProfilerRange range("step");
    step_(i);
  }
  optimizer_.advance(state_, steps, device_.compute_stream());
}

}  // namespace ddptrain
