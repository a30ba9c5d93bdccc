#include "runtime/train/trainer.h"

#include <algorithm>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/core/nvtx.h"

namespace ddptrain {
namespace {

TrainerOptions capturable(TrainerOptions options, const Communicator& communicator) {
  options.graph = options.graph && communicator.capturable();
  return options;
}

}  // namespace

ArenaOptions arena_options(const TrainerOptions& options) {
  return {options.bucket_bytes, options.last_bucket_bytes, rule_of(options.optimizer.kind).slots, options.gradient_type,
          options.zero};
}

DistributedSampler make_sampler(const TrainerOptions& options, const Dataset& data, const World& world) {
  return {data.train_count(), options.batch, options.grad_accum, world.rank(), world.size(), options.seed};
}

Trainer::Trainer(const TrainerOptions& options, std::unique_ptr<Model> model, const Dataset& data, const World& world,
                 Device& device, Communicator& communicator)
    : options_(capturable(options, communicator)),
      world_(world),
      device_(device),
      communicator_(communicator),
      test_count_(data.test_count()),
      sampler_(make_sampler(options, data, world)),
      model_(std::move(model)),
      gradient_scale_(1.0f / static_cast<float>(sampler_.samples_per_step() * model_->predictions_per_sample())),
      arena_(model_->parameters(), arena_options(options), device, communicator),
      state_(arena_, model_->buffers(), device),
      optimizer_(options.optimizer, options.clip_norm, arena_, device, communicator, options.fused_sum),
      reducer_(arena_, &communicator, device, options.overlap, on_reduced(), on_last_bucket()),
      silent_reducer_(arena_, nullptr, device, OverlapMode::none, on_reduced()),
      sums_(device.allocate(2 * sizeof(MetricSums))),
      training_(device, state_.step(), [this](std::uint32_t offset) { train_step(reducer_, offset); },
                {.enabled = options_.graph}) {
  model_->bind({arena_.weights(), arena_.gradients(), state_.buffers()});
  arena_.initialise(options.seed, world.rank());
  check_same_on_all_ranks(world, state_.parameter_hash(), "the parameters at the start");
}

GradientReducer::Reduced Trainer::on_reduced() {
  return [this](std::size_t bucket, Stream stream) { optimizer_.bucket_reduced(bucket, stream); };
}

GradientReducer::Reduced Trainer::on_last_bucket() {
  if (!optimizer_.sums_last_bucket()) return nullptr;
  return [this](std::size_t bucket, Stream stream) { optimizer_.sum_and_update(bucket, stream); };
}

GradientPath Trainer::gradient_path() const {
  if (communicator_.size() == 1) return {"none", "not summed", "one rank"};
  if (!reducer_.communicates()) return {"none", "not summed", "overlap none"};
  if (communicator_.library() == "MPI") return {"mpi", "MPI", communicator_.capturable() ? "" : "MPI was asked for"};
  if (!communicator_.symmetric()) return {"plain", "NCCL plain", communicator_.why_not_symmetric()};
  if (!optimizer_.sums_last_bucket()) return {"symmetric", "NCCL symmetric", optimizer_.why_not_fused()};
  return {"symmetric+fused", "NCCL symmetric + fused last bucket", ""};
}

Slice Trainer::training_slice(std::int64_t micro_step, std::uint32_t offset) const {
  return {sampler_.order(micro_step), {state_.step(), offset}, options_.batch};
}

void Trainer::train_step(GradientReducer& reducer, std::uint32_t offset) {
  const StepRef step{state_.step(), offset};
  optimizer_.begin_step(step, reducer.communicates());
  for (std::int64_t micro = 0; micro < options_.grad_accum; ++micro) {
    reducer.begin(micro + 1 == options_.grad_accum);
    {
      const Span span(device_.timeline(), Lane::compute, device_.compute_stream(), "forward");
      model_->forward(training_slice(micro, offset), gradient_scale_, training_sums());
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

void Trainer::restored(const MetricSums& sums) {
  device_.copy_to_device(training_sums(), &sums, sizeof(sums));
  model_->restored();
}

MetricSums Trainer::running_sums() const {
  MetricSums sums;
  device_.copy_to_host(&sums, training_sums(), sizeof(sums));
  return sums;
}

MetricSums Trainer::take_training_sums() { return take(training_sums()); }

MetricSums Trainer::evaluate(std::int64_t most) {
  const NvtxRange range("evaluation");
  const std::int64_t samples = most > 0 ? std::min(most, test_count_) : test_count_;
  const EvaluationShard shard = DistributedSampler::evaluation(samples, world_.rank(), world_.size());
  Slice slice;
  slice.step.state = state_.step();
  slice.order.dataset_size = static_cast<std::uint32_t>(test_count_);
  slice.order.shuffle = false;
  for (std::int64_t done = 0; done < shard.count; done += options_.batch) {
    slice.order.first = static_cast<std::uint32_t>(shard.first + done);
    slice.count = std::min(options_.batch, shard.count - done);
    model_->evaluate(slice, evaluation_sums());
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
    device_.get<OptimizerOps>().advance(state_.step(), steps, device_.compute_stream());
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
          state_.step(),
          [this](std::uint32_t offset) { train_step(silent_reducer_, offset); },
          {.enabled = options_.graph, .eager_steps = 0}};
}

StepGraph Trainer::make_communication_steps() {
  return {
      device_, state_.step(), [this](std::uint32_t) { communicate(); }, {.enabled = options_.graph, .eager_steps = 0}};
}

StepGraph Trainer::make_pass_steps(bool backward) {
  const auto passes = [this, backward](std::uint32_t offset) {
    for (std::int64_t micro = 0; micro < options_.grad_accum; ++micro) {
      model_->forward(training_slice(micro, offset), gradient_scale_, training_sums());
      if (backward) model_->backward(micro > 0, [](std::size_t) {});
    }
  };
  return {device_, state_.step(), passes, {.enabled = options_.graph, .eager_steps = 0}};
}

StepGraph Trainer::make_eager_steps() {
  return {device_, state_.step(), [this](std::uint32_t offset) { train_step(reducer_, offset); }, {.enabled = false}};
}

}  // namespace ddptrain
