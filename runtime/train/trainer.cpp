#include "runtime/train/trainer.h"

#include <algorithm>
#include <utility>

#include "models/registry.h"
#include "runtime/core/error.h"
#include "runtime/core/nvtx.h"

namespace ddptrain {
namespace {

ArenaOptions arena_options(const TrainerOptions& options) {
  return {options.bucket_bytes, options.last_bucket_bytes, rule_of(options.optimizer.kind).slots, options.gradient_type,
          options.zero};
}

ModelOptions model_options(const TrainerOptions& options) {
  ModelOptions result = options.model_options;
  result.max_batch = options.batch;
  result.seed = options.seed;
  return result;
}

}  // namespace

Trainer::Trainer(const TrainerOptions& options, ResidentSplits data, const World& world, Device& device,
                 Communicator& communicator)
    : options_(options),
      world_(world),
      device_(device),
      communicator_(communicator),
      data_(std::move(data)),
      sampler_(data_.train->count(), options.batch, options.grad_accum, world.rank(), world.size(), options.seed),
      model_(make_model(options.model, device, model_options(options))),
      gradient_scale_(1.0f / static_cast<float>(sampler_.samples_per_step() * model_->predictions_per_sample())),
      arena_(model_->parameters(), arena_options(options), device, communicator),
      optimizer_(options.optimizer, options.clip_norm, arena_, device, communicator, options.fused_sum),
      reducer_(arena_, &communicator, device, options.overlap, on_reduced(), on_last_bucket()),
      silent_reducer_(arena_, nullptr, device, OverlapMode::none, on_reduced()),
      state_(device.allocate(sizeof(StepState))),
      sums_(device.allocate(2 * sizeof(MetricSums))),
      training_(device, static_cast<StepState*>(state_.data()),
                [this](std::uint32_t offset) { train_step(reducer_, offset); }, {.enabled = options.graph}) {
  DDP_CHECK(arena_.gradient_type() == device.dtype() || takes_f32_gradients(options.model),
            "model {} does not take gradients of {}", options.model, name_of(arena_.gradient_type()));
  model_->bind(arena_.weights(), arena_.gradients());
  arena_.initialise(options.seed, world.rank(), options.start_values);
  check_same_on_all_ranks(world, arena_.parameter_hash(), "the parameters at the start");
}

GradientReducer::Reduced Trainer::on_reduced() {
  return [this](std::size_t bucket, Stream stream) { optimizer_.bucket_reduced(bucket, stream); };
}

GradientReducer::Reduced Trainer::on_last_bucket() {
  if (!optimizer_.sums_last_bucket()) return nullptr;
  return [this](std::size_t bucket, Stream stream) { optimizer_.sum_and_update(bucket, stream); };
}

void Trainer::train_step(GradientReducer& reducer, std::uint32_t offset) {
  const StepRef step{static_cast<const StepState*>(state_.data()), offset};
  optimizer_.begin_step(step, reducer.communicates());
  for (std::int64_t micro = 0; micro < options_.grad_accum; ++micro) {
    reducer.begin(micro + 1 == options_.grad_accum);
    const Batch batch = data_.train->batch(sampler_.order(micro), step, options_.batch);
    {
      const Span span(device_.timeline(), Lane::compute, device_.compute_stream(), "forward");
      model_->forward(batch, gradient_scale_, training_sums());
    }
    {
      const Span span(device_.timeline(), Lane::compute, device_.compute_stream(), "backward");
      model_->backward(micro > 0, [&](std::size_t parameter) { reducer.ready(parameter); });
    }
    reducer.finish();
  }
  optimizer_.finish_step();
}

MetricSums Trainer::take(MetricSums* sums) {
  MetricSums mine;
  device_.copy_to_host(&mine, sums, sizeof(mine));
  device_.zero(sums, sizeof(mine), device_.compute_stream());
  MetricSums total;
  total.loss = world_.sum(mine.loss);
  total.correct = static_cast<std::uint64_t>(world_.sum(static_cast<double>(mine.correct)));
  total.samples = static_cast<std::uint64_t>(world_.sum(static_cast<double>(mine.samples)));
  return total;
}

MetricSums Trainer::take_training_sums() { return take(training_sums()); }

MetricSums Trainer::evaluate(std::int64_t most) {
  const NvtxRange range("evaluation");
  const StepRef step{static_cast<const StepState*>(state_.data()), 0};
  const std::int64_t samples = most > 0 ? std::min(most, data_.test->count()) : data_.test->count();
  const EvaluationShard shard = DistributedSampler::evaluation(samples, world_.rank(), world_.size());
  SampleOrder order;
  order.dataset_size = static_cast<std::uint32_t>(data_.test->count());
  order.shuffle = false;
  for (std::int64_t done = 0; done < shard.count; done += options_.batch) {
    order.first = static_cast<std::uint32_t>(shard.first + done);
    const std::int64_t rows = std::min(options_.batch, shard.count - done);
    model_->evaluate(data_.test->batch(order, step, rows), evaluation_sums());
  }
  return take(evaluation_sums());
}

std::vector<TimelineSpan> Trainer::trace(std::uint32_t steps) {
  const std::unique_ptr<Timeline> timeline = device_.make_timeline();
  const auto work = [&] {
    for (std::uint32_t i = 0; i < steps; ++i) {
      const Span span(device_.timeline(), Lane::compute, device_.compute_stream(), fmt::format("step {}", i));
      train_step(reducer_, i);
    }
    device_.get<OptimizerOps>().advance(static_cast<StepState*>(state_.data()), steps, device_.compute_stream());
  };
  std::unique_ptr<Graph> graph;
  if (options_.graph) device_.record(*timeline, [&] { graph = device_.capture(work); });
  training_.run(2);  // so that the first step that is traced follows others
  if (graph != nullptr) {
    graph->launch();
  } else {
    device_.record(*timeline, work);
  }
  device_.synchronize();
  return timeline->spans();
}

void Trainer::communicate() {
  const Stream stream = device_.communication_stream();
  device_.wait_for(stream, device_.compute_stream());
  Communicator::Ticket last = 0;
  for (std::size_t bucket = 0; bucket < arena_.plan().buckets.size(); ++bucket) {
    last = start_sum(arena_, bucket, communicator_, stream);
    if (arena_.sharded()) last = communicator_.all_gather(arena_.bucket_weights(bucket), stream);
  }
  communicator_.wait(last);
  device_.wait_for(device_.compute_stream(), stream);
}

StepGraph Trainer::make_silent_steps() {
  return {device_,
          static_cast<StepState*>(state_.data()),
          [this](std::uint32_t offset) { train_step(silent_reducer_, offset); },
          {.enabled = options_.graph, .eager_steps = 0}};
}

StepGraph Trainer::make_communication_steps() {
  return {device_,
          static_cast<StepState*>(state_.data()),
          [this](std::uint32_t) { communicate(); },
          {.enabled = options_.graph, .eager_steps = 0}};
}

StepGraph Trainer::make_pass_steps(bool backward) {
  const auto passes = [this, backward](std::uint32_t offset) {
    const StepRef step{static_cast<const StepState*>(state_.data()), offset};
    for (std::int64_t micro = 0; micro < options_.grad_accum; ++micro) {
      const Batch batch = data_.train->batch(sampler_.order(micro), step, options_.batch);
      model_->forward(batch, gradient_scale_, training_sums());
      if (backward) model_->backward(micro > 0, [](std::size_t) {});
    }
  };
  return {device_, static_cast<StepState*>(state_.data()), passes, {.enabled = options_.graph, .eager_steps = 0}};
}

StepGraph Trainer::make_eager_steps() {
  return {device_,
          static_cast<StepState*>(state_.data()),
          [this](std::uint32_t offset) { train_step(reducer_, offset); },
          {.enabled = false}};
}

}  // namespace ddptrain
