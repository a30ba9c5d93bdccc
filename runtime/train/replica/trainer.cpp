#include "runtime/train/replica/trainer.h"

#include <utility>

#include "runtime/core/error.h"
#include "runtime/device/queueing.h"
#include "runtime/device/tuned_choices.h"
#include "runtime/train/replica/replica_check.h"

namespace ddptrain {
namespace {

StepOrder order_of(const Replica& replica, std::int64_t grad_accum) {
  const Stages& stages = replica.stages();
  return step_order(stages.count(), stages.index(), passes_of_step(replica.ranks().count, grad_accum),
                    replica.arena().units().size());
}

/// Weight of each prediction's loss in the gradient.
float gradient_scale_of(const DistributedSampler& sampler, const Model& model) {
  return 1.0f / static_cast<float>(sampler.samples_per_step() * model.predictions_per_sample());
}

}  // namespace

Trainer::Trainer(const TrainerOptions& options, std::unique_ptr<Model> model, const Dataset& data,
                 const World& replicas, Device& device, Communicator& communicator, const Stages& stages)
    : options_(capturable(options, communicator, stages)),
      replicas_(replicas),
      device_(device),
      sampler_(make_sampler(options, data, replicas.rank(), replicas.size())),
      replica_(options, ReplicaUse::training, std::move(model), device, communicator, stages),
      order_(order_of(replica_, options.grad_accum)),
      gradient_scale_(gradient_scale_of(sampler_, replica_.model())),
      updates_(options, replica_),
      reducer_(
          replica_.arena(), *updates_.communication.gradients, chosen_overlap(),
          [this](std::size_t bucket, Stream stream) { updates_.optimizer.bucket_reduced(bucket, stream); },
          updates_.communication.virtual_ranks.get()),
      metrics_(replica_.ranks(), options.on_nonfinite == OnNonFinite::skip, replicas, device),
      evaluator_(replica_, data.test_count(), options.batch, *updates_.communication.weights, metrics_),
      training_(device, replica_.state().step(), [this](std::uint32_t offset) { train_step(offset); },
                {.enabled = options_.graph}) {
  device.set_collectives_overlap(collectives_overlap());
  replica_.initialise(options.seed, replicas.rank());
  const std::string difference = differing_replicas(replica_.state(), &replicas, stages.tensor, device);
  if (!difference.empty()) throw Error(fmt::format("the parameters at the start differ: {}", difference), true);
}

/// A CPU updates a bucket during the next forward pass if the update needs only the bucket's own sum.
OverlapMode Trainer::chosen_overlap() const {
  const bool alone = updates_.communication.gradients->overlaps_next_forward() && updates_.optimizer.updates_at_once();
  return options_.overlap == OverlapMode::on && !alone ? OverlapMode::backward : options_.overlap;
}

/// Whether any do during the passes of a step.
bool Trainer::collectives_overlap() const {
  if (stages().count() > 1 || stages().tensor != nullptr) return true;
  return replicas_.size() > 1 && reducer_.mode() < OverlapMode::off &&
         updates_.communication.gradients->overlaps_backward();
}

// --- a step -------------------------------------------------------------------------------------------------------

void Trainer::run(std::uint64_t steps) {
  const TunedChoices::AllRanks together(device_.get<TunedChoices>());
  training_.run(steps);
}

void Trainer::train_step(GradientReducer& reducer, WeightStore& weights, std::uint32_t offset) {
  weights.changed();
  for (const Action& action : order_.actions) {
    const Queueing queueing(device_);  // each action is progress
    switch (action.kind) {
      case Action::Kind::exchange:
        exchange(action.messages, offset);
        break;
      case Action::Kind::forward:
        forward(order_.pass_of(action), weights, offset);
        break;
      case Action::Kind::backward:
        train_backward(order_.pass_of(action), reducer, weights, offset);
        break;
    }
  }
  updates_.optimizer.finish_step();
  metrics_.finish_step({state().step(), offset});
}

MicroBatch Trainer::micro_batch(const Pass& pass, std::uint32_t offset) {
  const VirtualRanks& ranks = replica_.ranks();
  const SampleOrder order = sampler_.order(pass.micro, ranks.at(pass.virtual_rank) - ranks.first);
  const Slice slice{order, {state().step(), offset}, options_.batch};
  return {slice, metrics_.step(pass.virtual_rank), true, gradient_scale_};
}

/// begin() comes first, because the size of the activations depends on the micro-batch.
void Trainer::exchange(const Exchange& messages, std::uint32_t offset) {
  if (const auto pass = messages.activations_in) {
    replica_.model_of(*pass).begin(micro_batch(order_.passes[static_cast<std::size_t>(*pass)], offset));
  }
  replica_.pipeline().exchange(messages, [this](std::int64_t pass) -> Model& { return replica_.model_of(pass); });
}

void Trainer::forward(const Pass& pass, WeightStore& weights, std::uint32_t offset) {
  if (pass.micro == 0) replica_.load_buffers(pass.virtual_rank);
  const Span span(device_.timeline(), Lane::compute, device_.compute_stream(), "forward");
  Model& model = replica_.model_of(pass.number);
  model.begin(micro_batch(pass, offset));
  for (const UnitTurn& turn : order_.forward) {
    wait_for_weights(arena().units()[turn.unit]);
    weights.acquire(turn.unit, turn.next);
    model.forward(turn.unit);
  }
}

void Trainer::wait_for_weights(const Unit& unit) {
  for (std::size_t i = unit.first; i < unit.first + unit.count; ++i) reducer_.wait_for(i);
  for (const std::size_t parameter : unit.also_reads) reducer_.wait_for(parameter);
}

void Trainer::train_backward(const Pass& pass, GradientReducer& reducer, WeightStore& weights, std::uint32_t offset) {
  if (pass.number == 0) updates_.optimizer.begin_step({state().step(), offset}, weights);
  reducer.begin(pass.number, pass.ends_step);
  backward(pass, reducer, weights);
  reducer.finish();
  if (pass.ends_virtual_rank) end_virtual_rank(pass);
}

void Trainer::backward(const Pass& pass, GradientReducer& reducer, WeightStore& weights) {
  std::optional<Span> span(std::in_place, device_.timeline(), Lane::compute, device_.compute_stream(), "backward");
  std::size_t left = arena().specs().size();
  const auto ready = [&](std::size_t parameter) {
    if (--left == 0) span.reset();  // the rest of this call belongs to the last bucket
    reducer.ready(parameter);
  };
  const bool accumulate = pass.micro > 0 && !reducer.sums_every_pass();
  for (const UnitTurn& turn : order_.backward) {
    reducer.claim_unit(turn.unit);
    weights.acquire(turn.unit, turn.next);
    replica_.model_of(pass.number).backward(turn.unit, accumulate, ready);
  }
}

void Trainer::end_virtual_rank(const Pass& pass) {
  replica_.save_buffers(pass.virtual_rank);
  if (pass.ends_step) {
    replica_.rewind_buffers();
  } else if (updates_.communication.virtual_ranks) {
    updates_.communication.virtual_ranks->keep(pass.virtual_rank);
  }
}

// --- between steps ------------------------------------------------------------------------------------------------

void Trainer::restored(std::vector<MetricSums> sums) {
  metrics_.set_training(std::move(sums));
  updates_.communication.weights->changed();
  replica_.restored();
}

void Trainer::complete_gradients() {
  device_.finish_unfinished();
  if (updates_.optimizer.updates_at_once()) updates_.communication.gradients->complete_sums();
}

void Trainer::log_gradient_norm() { updates_.optimizer.log_norm(state().step(), *updates_.communication.weights); }

double Trainer::gradient_norm() {
  complete_gradients();
  return updates_.optimizer.gradient_norm(*updates_.communication.weights);
}

std::vector<MetricSums> Trainer::training_totals(const std::vector<MetricSums>& mine) {
  std::vector<MetricSums> totals = metrics_.totals(mine);
  if (stages().count() > 1) {
    stages().ranks->broadcast(totals.data(), totals.size() * sizeof(MetricSums), stages().count() - 1);
  }
  return totals;
}

}  // namespace ddptrain
