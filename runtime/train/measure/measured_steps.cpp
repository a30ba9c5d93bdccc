#include "runtime/train/measure/measured_steps.h"

#include <optional>
#include <utility>

namespace ddptrain {

MeasuredSteps::MeasuredSteps(Trainer& trainer)
    : trainer_(trainer),
      no_sync_(make_no_sync()),
      own_weights_(make_replicated_weights()),
      no_communication_(
          trainer.arena(), *no_sync_, OverlapMode::none,
          [&trainer](std::size_t bucket, Stream stream) { trainer.updates().optimizer.bucket_reduced(bucket, stream); },
          trainer.updates().communication.virtual_ranks.get()) {}

StepGraph::Step MeasuredSteps::step() {
  return [this](std::uint32_t offset) { trainer_.train_step(offset); };
}

StepGraph::Step MeasuredSteps::step_without_communication() {
  return [this](std::uint32_t offset) { trainer_.train_step(no_communication_, *own_weights_, offset); };
}

StepGraph::Step MeasuredSteps::communication() {
  Optimizer& optimizer = trainer_.updates().optimizer;
  const StepCommunication& path = trainer_.updates().communication;
  WeightStore& weights = *path.weights;
  const bool updates = weights.update_sends();
  const auto follow = [&optimizer, &weights, updates](std::size_t bucket, Stream stream) {
    if (updates) return optimizer.bucket_reduced(bucket, stream);
    weights.updated(bucket, stream);
  };
  const auto reducer = std::make_shared<GradientReducer>(trainer_.arena(), *path.gradients, trainer_.overlap_mode(),
                                                         follow, path.virtual_ranks.get());
  return [this, &optimizer, &weights, updates, reducer](std::uint32_t offset) {
    trainer_.device().finish_unfinished();  // updates of the step before
    optimizer.begin_step({trainer_.state().step(), offset}, weights);
    for (const Pass& pass : trainer_.order().passes) communicate(pass, *reducer, weights);
    if (updates) return optimizer.finish_step();
    optimizer.send_directions();
    weights.finish();
  };
}

void MeasuredSteps::communicate(const Pass& pass, GradientReducer& reducer, WeightStore& weights) const {
  const StepOrder& order = trainer_.order();
  const std::vector<Unit>& units = trainer_.arena().units();
  for (const UnitTurn& turn : order.forward) weights.acquire(turn.unit, std::nullopt);
  if (!is_reduced(pass.ends_step, reducer.sums_every_pass())) return;
  reducer.begin(pass.number, pass.ends_step);
  for (const UnitTurn& turn : order.backward) {
    reducer.claim_unit(turn.unit);
    weights.acquire(turn.unit, std::nullopt);
    const Unit& unit = units[turn.unit];
    for (std::size_t i = unit.first; i < unit.first + unit.count; ++i) reducer.ready(i);
  }
  reducer.finish();
}

StepGraph MeasuredSteps::graph_of(StepGraph::Step step) const {
  return {trainer_.device(),
          trainer_.state().step(),
          std::move(step),
          {.enabled = trainer_.options().graph, .eager_steps = 0}};
}

}  // namespace ddptrain
