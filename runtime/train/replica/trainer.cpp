#include "runtime/train/replica/trainer.h"

#include <algorithm>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/core/hash.h"
#include "runtime/device/tuned_choices.h"
#include "runtime/train/replica/replica_check.h"

namespace ddptrain {

Trainer::Trainer(const TrainerOptions& options, std::unique_ptr<Model> model, const Dataset& data, const World& world,
                 Device& device, Communicator& communicator, const Stages& stages)
    : options_(capturable(options, communicator, stages)),
      world_(world),
      device_(device),
      pipeline_(stages, device),
      test_count_(data.test_count()),
      ranks_(virtual_ranks(options, world.rank(), world.size())),
      sampler_(make_sampler(options, data, world.rank(), world.size())),
      passes_(passes_of_step(ranks_.count, options.grad_accum)),
      schedule_(pipeline_schedule(stages.count(), stages.index(), std::ssize(passes_))),
      models_(with_siblings(std::move(model), passes_in_flight(stages.count(), stages.index(), std::ssize(passes_)))),
      units_(models_.front()->units()),
      gradient_scale_(1.0f /
                      static_cast<float>(sampler_.samples_per_step() * models_.front()->predictions_per_sample())),
      arena_(models_.front()->parameters(), arena_options(options, *models_.front()), device, communicator),
      state_(arena_, models_.front()->buffers(), options.virtual_ranks > 0 ? std::optional(ranks_) : std::nullopt),
      optimizer_(options.optimizer, options.clip_norm, arena_, &state_.step()->nonfinite, options.on_nonfinite,
                 &pipeline_),
      communication_(make_step_communication(options, arena_, optimizer_)),
      reducer_(arena_, *communication_.gradients, overlap(), update_bucket(), communication_.virtual_ranks.get()),
      silent_reducer_(arena_, *communication_.no_gradients, OverlapMode::none, update_bucket(),
                      communication_.virtual_ranks.get()),
      metrics_(ranks_, options.on_nonfinite == OnNonFinite::skip, world, device),
      training_(make_steps(step(true), StepGraphOptions{}.eager_steps)) {
  check_units(units_, arena_.specs().size());
  for (const Unit& unit : units_) unit_buckets_.push_back(buckets_of(arena_.plan(), unit));
  for (const auto& each : models_) each->bind({arena_.weights(), arena_.gradients(), state_.buffers(), stages.group});
  for (std::int64_t i = 0; i < ranks_.count; ++i) state_.put_away(i);
  arena_.initialise(options.seed, world.rank());
  const std::string difference = differing_replicas(state_, &world, stages.group, device);
  if (!difference.empty()) throw Error(fmt::format("the parameters at the start differ: {}", difference), true);
}

/// A CPU updates a bucket during the next forward pass if the update needs only the bucket's own sum.
OverlapMode Trainer::overlap() const {
  const bool alone = communication_.gradients->may_outlast_step() && optimizer_.updates_at_once();
  return options_.overlap == OverlapMode::on && !alone ? OverlapMode::backward : options_.overlap;
}

GradientSync::Reduced Trainer::update_bucket() {
  return [this](std::size_t bucket, Stream stream) { optimizer_.bucket_reduced(bucket, stream); };
}

StepGraph::Step Trainer::step(bool communicates) {
  GradientReducer& reducer = communicates ? reducer_ : silent_reducer_;
  WeightStore& weights = communicates ? *communication_.weights : *communication_.no_weights;
  return [this, &reducer, &weights](std::uint32_t offset) { train_step(reducer, weights, offset); };
}

StepGraph Trainer::make_steps(StepGraph::Step step, std::uint32_t eager_steps) {
  return {device_, state_.step(), std::move(step), {.enabled = options_.graph, .eager_steps = eager_steps}};
}

MicroBatch Trainer::micro_batch(const Pass& pass, std::uint32_t offset, float gradient_scale) {
  const Slice slice{
      sampler_.order(pass.micro, ranks_.at(pass.virtual_rank) - ranks_.first), {state_.step(), offset}, options_.batch};
  return {slice, metrics_.step(pass.virtual_rank), true, gradient_scale};
}

void Trainer::train_step(GradientReducer& reducer, WeightStore& weights, std::uint32_t offset) {
  weights.changed();
  for (const Action& action : schedule_) {
    const Pass& pass = passes_[static_cast<std::size_t>(action.pass)];
    switch (action.kind) {
      case Action::Kind::exchange:
        exchange(action.messages, offset);
        break;
      case Action::Kind::forward:
        forward(pass, weights, offset);
        break;
      case Action::Kind::backward:
        train_backward(pass, reducer, weights, offset);
        break;
    }
  }
  optimizer_.finish_step();
  metrics_.finish_step({state_.step(), offset});
}

void Trainer::forward(const Pass& pass, WeightStore& weights, std::uint32_t offset) {
  if (pass.micro == 0) take_up(pass.virtual_rank);
  forward(model_of(pass.number), micro_batch(pass, offset, gradient_scale_), weights);
}

void Trainer::train_backward(const Pass& pass, GradientReducer& reducer, WeightStore& weights, std::uint32_t offset) {
  if (pass.number == 0) optimizer_.begin_step({state_.step(), offset}, weights);
  reducer.begin(pass.number, pass.ends_step);
  backward(pass, reducer, weights);
  reducer.finish();
  if (pass.ends_virtual_rank) put_away(pass);
}

/// begin() comes first, because the size of the activations depends on the micro-batch.
void Trainer::exchange(const Exchange& messages, std::uint32_t offset) {
  if (const auto pass = messages.activations_in) {
    model_of(*pass).begin(micro_batch(passes_[static_cast<std::size_t>(*pass)], offset, gradient_scale_));
  }
  pipeline_.exchange(messages, [this](std::int64_t pass) -> Model& { return model_of(pass); });
}

void Trainer::forward(Model& model, const MicroBatch& batch, WeightStore& weights) {
  const Span span(device_.timeline(), Lane::compute, device_.compute_stream(), "forward");
  model.begin(batch);
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    wait_for_weights(units_[unit]);
    weights.acquire(unit, unit + 1);
    model.forward(unit);
  }
}

void Trainer::wait_for_weights(const Unit& unit) {
  for (std::size_t i = unit.first; i < unit.first + unit.count; ++i) reducer_.wait_for(i);
  for (const std::size_t parameter : unit.also_reads) reducer_.wait_for(parameter);
}

void Trainer::backward(const Pass& pass, GradientReducer& reducer, WeightStore& weights) {
  std::optional<Span> span(std::in_place, device_.timeline(), Lane::compute, device_.compute_stream(), "backward");
  std::size_t left = arena_.specs().size();
  const auto ready = [&](std::size_t parameter) {
    if (--left == 0) span.reset();  // the rest of this call belongs to the last bucket
    reducer.ready(parameter);
  };
  const bool accumulate = pass.micro > 0 && !reducer.sums_every_pass();
  for (std::size_t unit = units_.size(); unit-- > 0;) {
    claim_gradients(unit, reducer);
    weights.acquire(unit, unit - 1);
    model_of(pass.number).backward(unit, accumulate, ready);
  }
}

/// A unit may write gradients of the one before it, too: see Model::backward().
void Trainer::claim_gradients(std::size_t unit, GradientReducer& reducer) {
  for (std::size_t i = unit > 0 ? unit - 1 : 0; i <= unit; ++i) {
    for (const std::size_t bucket : unit_buckets_[i]) reducer.claim(bucket);
  }
}

/// Until every virtual rank has used the buffers, the model's host state about them may differ between virtual ranks.
void Trainer::take_up(std::int64_t virtual_rank) {
  if (ranks_.count == 1) return;
  state_.take_up(virtual_rank);
  if (!buffers_used_) model().restored();
}

void Trainer::put_away(const Pass& pass) {
  state_.put_away(pass.virtual_rank);
  if (!pass.ends_step) {
    if (communication_.virtual_ranks) communication_.virtual_ranks->keep(pass.virtual_rank);
    return;
  }
  state_.take_up(0);
  buffers_used_ = true;
}

void Trainer::run(std::uint64_t steps) {
  const TunedChoices::AllRanks together(device_.get<TunedChoices>());
  training_.run(steps);
}

void Trainer::restored(std::vector<MetricSums> sums) {
  metrics_.set_training(std::move(sums));
  buffers_used_ = false;
  state_.take_up(0);
  communication_.weights->changed();
  model().restored();
}

std::string Trainer::parameter_hash() const {
  const Stages& stages = pipeline_.stages();
  Hash128 hash;
  for (int stage = stages.count() - 1; stage >= 0; --stage) {
    if (stage == stages.index()) state_.add_parameters(hash, stages.group);
    if (stages.count() == 1) break;
    std::string so_far = hash.state();
    stages.world->broadcast(so_far.data(), so_far.size(), stage);
    hash.go_on_from(so_far);
  }
  return hash.hex();
}

void Trainer::complete_gradients() {
  device_.finish_unfinished();
  if (optimizer_.updates_at_once()) communication_.gradients->complete_sums();
}

void Trainer::log_gradient_norm() { optimizer_.log_norm(state_.step(), *communication_.weights); }

std::vector<MetricSums> Trainer::training_totals(const std::vector<MetricSums>& mine) {
  std::vector<MetricSums> totals = metrics_.totals(mine);
  const Stages& stages = pipeline_.stages();
  if (stages.count() > 1) {
    stages.world->broadcast(totals.data(), totals.size() * sizeof(MetricSums), stages.count() - 1);
  }
  return totals;
}

double Trainer::gradient_norm() {
  complete_gradients();
  return optimizer_.gradient_norm(*communication_.weights);
}

MetricSums Trainer::evaluate(std::int64_t most) {
  const Watch::Phase phase(device_.watch(), "evaluation");
  device_.finish_unfinished();
  communication_.weights->changed();
  const std::int64_t samples = most > 0 ? std::min(most, test_count_) : test_count_;
  const std::int64_t largest = (samples + ranks_.all - 1) / ranks_.all;
  const auto batches = static_cast<std::size_t>((largest + options_.batch - 1) / options_.batch);
  for (std::int64_t i = 0; i < ranks_.count; ++i) {
    take_up(i);
    evaluate(DistributedSampler::evaluation(samples, static_cast<int>(ranks_.at(i)), static_cast<int>(ranks_.all)),
             batches, metrics_.evaluation(i));
    state_.put_away(i);
  }
  take_up(0);
  return from_last_stage(metrics_.take_evaluation());
}

MetricSums Trainer::from_last_stage(MetricSums sums) const {
  const Stages& stages = pipeline_.stages();
  if (stages.count() > 1) stages.world->broadcast(&sums, sizeof(sums), stages.count() - 1);
  return sums;
}

void Trainer::evaluate(const EvaluationShard& shard, std::size_t batches, MetricSums* sums) {
  const std::vector<Slice> slices = evaluation_slices(state_.step(), test_count_, shard, options_.batch);
  const auto mine = static_cast<std::uint32_t>(slices.size());
  const Stages& stages = pipeline_.stages();
  const auto the_model = [this](std::int64_t) -> Model& { return model(); };
  for (std::uint32_t done = 0; done < mine; ++done) {
    if (device_.kind() == DeviceKind::cpu) device_.watch().set_part(done, mine);
    const MicroBatch batch{slices[done], sums, false};
    model().begin(batch);
    if (stages.index() > 0) pipeline_.exchange({.activations_in = done}, the_model);
    forward(model(), batch, *communication_.weights);
    if (!stages.is_last()) pipeline_.exchange({.activations_out = done}, the_model);
  }
  for (std::size_t i = slices.size(); i < batches; ++i) {
    for (std::size_t unit = 0; unit < units_.size(); ++unit) communication_.weights->acquire(unit, unit + 1);
  }
}

/// The communication of all passes of a step, without their compute.
void Trainer::communicate(const Pass& pass, GradientReducer& reducer, WeightStore& weights) {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) weights.acquire(unit, unit);
  if (!pass.ends_step && !reducer.sums_every_pass()) return;
  reducer.begin(pass.number, pass.ends_step);
  for (std::size_t unit = units_.size(); unit-- > 0;) {
    claim_gradients(unit, reducer);
    weights.acquire(unit, unit);
    for (std::size_t i = 0; i < units_[unit].count; ++i) reducer.ready(units_[unit].first + i);
  }
  reducer.finish();
}

StepGraph Trainer::make_communication_steps() {
  WeightStore& weights = *communication_.weights;
  const bool updates = weights.update_sends();
  const auto follow = [this, &weights, updates](std::size_t bucket, Stream stream) {
    if (updates) return optimizer_.bucket_reduced(bucket, stream);
    weights.updated(bucket, stream);
  };
  const auto reducer = std::make_shared<GradientReducer>(arena_, *communication_.gradients, reducer_.mode(), follow,
                                                         communication_.virtual_ranks.get());
  const auto step = [this, &weights, updates, reducer](std::uint32_t offset) {
    optimizer_.begin_step({state_.step(), offset}, weights);
    for (const Pass& pass : passes_) communicate(pass, *reducer, weights);
    if (updates) return optimizer_.finish_step();
    weights.finish();
  };
  return make_steps(step);
}

}  // namespace ddptrain
