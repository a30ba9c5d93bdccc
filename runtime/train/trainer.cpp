#include "runtime/train/trainer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/core/nvtx.h"
#include "runtime/core/printable.h"
#include "runtime/device/tuned_choices.h"
#include "runtime/train/replica_check.h"

namespace ddptrain {
namespace {

TrainerOptions capturable(TrainerOptions options, const Communicator& communicator) {
  options.graph = options.graph && communicator.capturable();
  return options;
}

}  // namespace

ArenaOptions arena_options(const TrainerOptions& options) {
  return {options.bucket_bytes,
          options.last_bucket_bytes,
          rule_of(options.optimizer.kind).slots,
          options.gradient_type,
          options.zero,
          options.virtual_ranks > 0,
          options.fused_sum && options.virtual_ranks == 0};
}

VirtualRanks virtual_ranks(const TrainerOptions& options, int rank, int world_size) {
  const std::int64_t all = options.virtual_ranks;
  if (all == 0) return {world_size, rank, 1};
  if (!std::has_single_bit(static_cast<std::uint64_t>(all))) {
    usage_error("--virtual-ranks {}: their gradients are added in pairs, and the sums in pairs. Use a power of two.",
                all);
  }
  if (all % world_size != 0) {
    usage_error(
        "--virtual-ranks {} on {}: each rank takes as many virtual ranks as the others. Use 1, 2, 4 or another "
        "power of two up to {}.",
        all, counted(world_size, "rank"), all);
  }
  const std::int64_t count = all / world_size;
  return {all, rank * count, count};
}

std::optional<GradientTree> make_tree(const TrainerOptions& options, const ParameterArena& arena, Device& device,
                                      Communicator& communicator) {
  if (options.virtual_ranks == 0) return std::nullopt;
  const std::int64_t neighbours = virtual_ranks(options, communicator.rank(), communicator.size()).count;
  return std::make_optional<GradientTree>(arena, neighbours, device, communicator);
}

DistributedSampler make_sampler(const TrainerOptions& options, const Dataset& data, const World& world) {
  const VirtualRanks ranks = virtual_ranks(options, world.rank(), world.size());
  return {data.train_count(),          options.batch, options.grad_accum, static_cast<int>(ranks.first),
          static_cast<int>(ranks.all), options.seed};
}

Trainer::Trainer(const TrainerOptions& options, std::unique_ptr<Model> model, const Dataset& data, const World& world,
                 Device& device, Communicator& communicator)
    : options_(capturable(options, communicator)),
      world_(world),
      device_(device),
      communicator_(communicator),
      test_count_(data.test_count()),
      ranks_(virtual_ranks(options, world.rank(), world.size())),
      sampler_(make_sampler(options, data, world)),
      model_(std::move(model)),
      gradient_scale_(1.0f / static_cast<float>(sampler_.samples_per_step() * model_->predictions_per_sample())),
      arena_(model_->parameters(), arena_options(options), device, communicator),
      state_(arena_, model_->buffers(), device, options.virtual_ranks > 0 ? std::optional(ranks_) : std::nullopt),
      tree_(make_tree(options, arena_, device, communicator)),
      optimizer_(options.optimizer, options.clip_norm, arena_, device, communicator,
                 options.fused_sum && ranks_.count == 1, &state_.step()->nonfinite, options.on_nonfinite),
      reducer_(arena_, &communicator, device, overlap(), on_reduced(), on_last_bucket(), tree()),
      silent_reducer_(arena_, nullptr, device, OverlapMode::none, on_reduced(), nullptr, tree()),
      sums_(device.allocate(4 * static_cast<std::size_t>(ranks_.count) * sizeof(MetricSums))),
      training_(device, state_.step(), [this](std::uint32_t offset) { train_step(reducer_, offset); },
                {.enabled = options_.graph}) {
  model_->bind({arena_.weights(), arena_.gradients(), state_.buffers()});
  for (std::int64_t neighbour = 0; neighbour < ranks_.count; ++neighbour) state_.put_away(neighbour);
  arena_.initialise(options.seed, world.rank());
  if (world.size() == 1) return;
  const std::string difference = differing_replicas(state_, world, device);
  if (!difference.empty()) throw Error(fmt::format("the parameters at the start differ: {}", difference), true);
}

/// A CPU updates a bucket beneath the next forward pass where nothing but the bucket's own sum is needed for it.
OverlapMode Trainer::overlap() const {
  const bool waits = tree_ || arena_.sharded() || optimizer_.needs_norm();
  return options_.overlap == OverlapMode::on && waits ? OverlapMode::backward : options_.overlap;
}

GradientReducer::Reduced Trainer::on_reduced() {
  return [this](std::size_t bucket, Stream stream) { optimizer_.bucket_reduced(bucket, stream); };
}

GradientReducer::Reduced Trainer::on_last_bucket() {
  if (!optimizer_.sums_last_bucket()) return nullptr;
  return [this](std::size_t bucket, Stream stream) { optimizer_.sum_and_update(bucket, stream); };
}

GradientPath Trainer::gradient_path() const {
  if (communicator_.size() == 1 && ranks_.count == 1) return {"none", "not summed", "one rank"};
  if (!reducer_.communicates()) return {"none", "not summed", "overlap none"};
  if (tree_ && (tree_->exchanges() || ranks_.count > 1)) return tree_path();
  if (communicator_.library() == "MPI") return {"mpi", "MPI", communicator_.capturable() ? "" : "MPI was asked for"};
  if (!communicator_.symmetric()) return {"plain", "NCCL plain", communicator_.why_not_symmetric()};
  if (arena_.reaches_peers()) return {"peers", "sum, update and weights by the GPUs in each other's memory", ""};
  if (!optimizer_.sums_last_bucket()) return {"symmetric", "NCCL symmetric", optimizer_.why_not_fused()};
  return {"symmetric+fused", "NCCL symmetric + fused last bucket", ""};
}

GradientPath Trainer::tree_path() const {
  const std::string library = communicator_.library().empty() ? "" : communicator_.library() + ", ";
  const std::string fused = optimizer_.sums_last_bucket() ? " + fused last bucket" : "";
  return {"tree", fmt::format("{}binary tree of {}{}", library, counted(ranks_.all, "virtual rank"), fused),
          "the order of additions is fixed"};
}

Slice Trainer::training_slice(std::int64_t neighbour, std::int64_t micro_step, std::uint32_t offset) const {
  return {sampler_.order(micro_step, neighbour), {state_.step(), offset}, options_.batch};
}

void Trainer::train_step(GradientReducer& reducer, std::uint32_t offset) {
  for (std::int64_t neighbour = 0; neighbour < ranks_.count; ++neighbour) {
    const bool last = neighbour + 1 == ranks_.count;
    take_up(neighbour);
    for (std::int64_t micro = 0; micro < options_.grad_accum; ++micro) {
      forward(training_slice(neighbour, micro, offset), gradient_scale_, step_sums() + neighbour);
      if (neighbour == 0 && micro == 0) optimizer_.begin_step({state_.step(), offset}, reducer.communicates());
      reducer.begin(last && micro + 1 == options_.grad_accum);
      {
        std::optional<Span> span(std::in_place, device_.timeline(), Lane::compute, device_.compute_stream(),
                                 "backward");
        std::size_t left = arena_.specs().size();
        model_->backward(micro > 0, [&](std::size_t parameter) {
          if (--left == 0) span.reset();  // what follows is the last bucket's
          reducer.ready(parameter);
        });
      }
      reducer.finish();
    }
    state_.put_away(neighbour);
    if (!last) tree_->keep(neighbour);
  }
  state_.take_up(0);
  buffers_used_ = true;
  optimizer_.finish_step();
  if (!may_skip()) return;
  for (std::int64_t neighbour = 0; neighbour < ranks_.count; ++neighbour) {
    device_.get<OptimizerOps>().add_unless_left_out(&state_.step()->nonfinite, step_sums() + neighbour,
                                                    training_sums() + neighbour, device_.compute_stream());
  }
}

void Trainer::forward(const Slice& slice, float gradient_scale, MetricSums* sums) {
  const Span span(device_.timeline(), Lane::compute, device_.compute_stream(), "forward");
  std::vector<bool> read(arena_.specs().size());
  model_->forward(slice, gradient_scale, sums, [&](std::size_t parameter) {
    read.at(parameter) = true;
    reducer_.wait_for(parameter);
  });
  const auto missed = static_cast<std::size_t>(std::ranges::find(read, false) - read.begin());
  DDP_CHECK(missed == read.size(), "forward did not report that it reads {}", arena_.specs()[missed].name);
}

void Trainer::run(std::uint64_t steps) {
  const TunedChoices::AllRanks together(device_.get<TunedChoices>());
  training_.run(steps);
}

void Trainer::restored(std::vector<MetricSums> sums) {
  sums.resize(static_cast<std::size_t>(ranks_.count));
  device_.copy_to_device(training_sums(), sums.data(), sums.size() * sizeof(MetricSums));
  buffers_used_ = false;
  state_.take_up(0);
  model_->restored();
}

std::vector<MetricSums> Trainer::read(const MetricSums* sums) const {
  std::vector<MetricSums> values(virtual_rank_count());
  device_.copy_to_host(values.data(), sums, sums_bytes());
  return values;
}

/// What the model knows of its buffers on the host may differ between virtual ranks until all have used them.
void Trainer::take_up(std::int64_t neighbour) {
  if (ranks_.count == 1) return;
  state_.take_up(neighbour);
  if (!buffers_used_) model_->restored();
}

MetricSums Trainer::take(MetricSums* sums) {
  const std::vector<MetricSums> mine = read(sums);
  device_.zero(sums, sums_bytes(), device_.compute_stream());
  return total(mine);
}

/// Added in the order of virtual ranks.
MetricSums Trainer::total(const std::vector<MetricSums>& mine) const {
  std::string bytes(sums_bytes(), '\0');
  std::memcpy(bytes.data(), mine.data(), bytes.size());
  MetricSums total;
  for (const std::string& of_rank : world_.all_gather(bytes)) {
    for (std::size_t at = 0; at < of_rank.size(); at += sizeof(MetricSums)) {
      MetricSums part;
      std::memcpy(&part, of_rank.data() + at, sizeof(part));
      total.loss += part.loss;
      total.correct += part.correct;
      total.samples += part.samples;
    }
  }
  return total;
}

MetricSums Trainer::take_training_sums() { return take(training_sums()); }

void Trainer::mark_training_sums() {
  device_.copy(marked_sums(), training_sums(), sums_bytes(), device_.compute_stream());
}

MetricSums Trainer::sums_since_mark() {
  std::vector<MetricSums> sums = running_sums();
  const std::vector<MetricSums> before = read(marked_sums());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i].loss -= before[i].loss;
    sums[i].correct -= before[i].correct;
    sums[i].samples -= before[i].samples;
  }
  return total(sums);
}

void Trainer::copy_running_sums(MetricSums* pinned) {
  device_.copy(pinned, training_sums(), sums_bytes(), device_.compute_stream());
}

MetricSums Trainer::evaluate(std::int64_t most) {
  const NvtxRange range("evaluation");
  const Watch::Phase phase(device_.watch(), "evaluation");
  device_.finish_unfinished();
  const std::int64_t samples = most > 0 ? std::min(most, test_count_) : test_count_;
  for (std::int64_t i = 0; i < ranks_.count; ++i) {
    take_up(i);
    evaluate(DistributedSampler::evaluation(samples, static_cast<int>(ranks_.first + i), static_cast<int>(ranks_.all)),
             evaluation_sums() + i);
    state_.put_away(i);
  }
  take_up(0);
  return take(evaluation_sums());
}

void Trainer::evaluate(const EvaluationShard& shard, MetricSums* sums) {
  const std::vector<Slice> slices = evaluation_slices(state_.step(), test_count_, shard, options_.batch);
  const auto batches = static_cast<std::uint32_t>(slices.size());
  std::uint32_t done = 0;
  for (const Slice& slice : slices) {
    if (device_.kind() == DeviceKind::cpu) device_.watch().set_part(done++, batches);
    model_->evaluate(slice, sums);
  }
}

TracedSteps::TracedSteps(Device& device, bool graph, std::function<void()> work)
    : device_(device), work_(std::move(work)), timeline_(device.make_timeline()) {
  if (graph) device_.record(*timeline_, [&] { graph_ = device_.capture(work_); });
}

std::vector<TimelineSpan> TracedSteps::run() {
  if (graph_ != nullptr) {
    graph_->launch();
  } else {
    timeline_ = device_.make_timeline();
    device_.record(*timeline_, work_);
  }
  device_.synchronize();
  return timeline_->spans();
}

TracedSteps Trainer::make_traced_steps(std::uint32_t steps, bool communicates) {
  return {device_, options_.graph, [this, steps, communicates] {
            for (std::uint32_t i = 0; i < steps; ++i) {
              const Span span(device_.timeline(), Lane::compute, device_.compute_stream(), fmt::format("step {}", i));
              train_step(communicates ? reducer_ : silent_reducer_, i);
            }
            device_.get<OptimizerOps>().advance(state_.step(), steps, device_.compute_stream());
          }};
}

std::vector<TimelineSpan> Trainer::trace(std::uint32_t steps) {
  const Watch::Phase phase(device_.watch(), "trace");
  TracedSteps traced = make_traced_steps(steps, true);
  training_.run(2);  // so that the first step that is traced follows others
  return traced.run();
}

/// Waits for the host's part in it.
Communicator::Ticket Trainer::sum_by_tree(std::size_t bucket, Stream stream) {
  const Communicator::Ticket exchanged = tree_->exchange(bucket, stream);
  communicator_.wait(exchanged);
  tree_->add(bucket, stream);
  return arena_.sharded() ? exchanged : tree_->gather(bucket, stream);
}

/// What is summed and updated by one kernel, or in the memory of peers, is updated here, too.
void Trainer::communicate(StepRef step) {
  if (arena_.reaches_peers()) {
    optimizer_.begin_step(step, true);
    return optimizer_.sum_and_update_by_peers();
  }
  const Stream stream = device_.communication_stream();
  const std::size_t buckets = arena_.plan().buckets.size();
  optimizer_.begin_step(step, false);
  device_.wait_for(stream, device_.compute_stream());
  Communicator::Ticket last = 0;
  for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
    if (bucket + 1 == buckets && reducer_.communicates() && optimizer_.sums_last_bucket()) {
      optimizer_.sum_and_update(bucket, stream);
      continue;
    }
    last = tree_ && tree_->exchanges() ? sum_by_tree(bucket, stream) : start_sum(arena_, bucket, communicator_, stream);
    if (arena_.sharded()) last = communicator_.all_gather(arena_.bucket_weights(bucket), stream);
  }
  communicator_.wait(last);
  device_.wait_for(device_.compute_stream(), stream);
}

StepGraph Trainer::make_silent_steps(bool whole_device) {
  const auto step = [this, whole_device](std::uint32_t offset) {
    const std::optional<WholeDevice> whole = whole_device ? std::make_optional<WholeDevice>(device_) : std::nullopt;
    train_step(silent_reducer_, offset);
  };
  return {device_, state_.step(), step, {.enabled = options_.graph, .eager_steps = 0}};
}

StepGraph Trainer::make_communication_steps() {
  const auto step = [this](std::uint32_t offset) { communicate({state_.step(), offset}); };
  return {device_, state_.step(), step, {.enabled = options_.graph, .eager_steps = 0}};
}

StepGraph Trainer::make_pass_steps(bool backward) {
  const auto passes = [this, backward](std::uint32_t offset) {
    for (std::int64_t neighbour = 0; neighbour < ranks_.count; ++neighbour) {
      for (std::int64_t micro = 0; micro < options_.grad_accum; ++micro) {
        const float scale = backward ? gradient_scale_ : 0.0f;
        forward(training_slice(neighbour, micro, offset), scale, training_sums() + neighbour);
        if (backward) model_->backward(micro > 0, [](std::size_t) {});
      }
    }
  };
  return {device_, state_.step(), passes, {.enabled = options_.graph, .eager_steps = 0}};
}

StepGraph Trainer::make_eager_steps() {
  return {device_, state_.step(), [this](std::uint32_t offset) { train_step(reducer_, offset); }, {.enabled = false}};
}

}  // namespace ddptrain
