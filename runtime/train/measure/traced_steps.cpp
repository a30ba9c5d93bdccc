#include "runtime/train/measure/traced_steps.h"

#include <spdlog/fmt/fmt.h>

namespace ddptrain {

TracedSteps::TracedSteps(Trainer& trainer, std::uint32_t steps, bool communicates)
    : trainer_(trainer),
      device_(trainer.device()),
      steps_(steps),
      step_(trainer.step(communicates)),
      timeline_(device_.make_timeline()) {
  if (!trainer.uses_graphs()) return;
  device_.record(*timeline_, [&] { graph_ = device_.capture([this] { queue(); }); });
}

void TracedSteps::queue() {
  const Stream stream = device_.compute_stream();
  for (std::uint32_t i = 0; i < steps_; ++i) {
    const Span span(device_.timeline(), Lane::compute, stream, fmt::format("step {}", i));
    step_(i);
  }
  device_.get<OptimizerOps>().advance(trainer_.state().step(), steps_, stream);
}

std::vector<TimelineSpan> TracedSteps::run() {
  if (graph_ != nullptr) {
    graph_->launch();
  } else {
    timeline_ = device_.make_timeline();
    device_.record(*timeline_, [this] { queue(); });
  }
  device_.synchronize();
  return timeline_->spans();
}

std::vector<TimelineSpan> trace_steps(Trainer& trainer, std::uint32_t steps) {
  const Watch::Phase phase(trainer.device().watch(), "trace");
  TracedSteps traced(trainer, steps, true);
  trainer.training_steps().run(2);  // so that the first traced step follows other steps
  return traced.run();
}

}  // namespace ddptrain
