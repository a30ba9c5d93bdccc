#include "runtime/train/step/optimizer.h"

#include "runtime/core/error.h"

namespace ddptrain {

Optimizer::Optimizer(const OptimizerSettings& settings, float clip_norm, const ParameterArena& arena,
                     NonFinite* nonfinite, OnNonFinite on_nonfinite, Pipeline* pipeline)
    : settings_(settings),
      clip_norm_(clip_norm),
      arena_(arena),
      device_(arena.device()),
      ops_(device_.get<OptimizerOps>()),
      nonfinite_(nonfinite),
      pipeline_(pipeline),
      waits_(clip_norm > 0.0f || on_nonfinite == OnNonFinite::skip || rule_of(settings.kind).whole_parameters()) {
  DDP_CHECK(!waits_ || nonfinite != nullptr, "a norm that is not finite must be noted");
  if (waits_) norm_.emplace(arena, pipeline);
  if (rule_of(settings.kind).matrices) directions_.emplace(arena);
  if (rule_of(settings.kind).norms) ratios_.emplace(arena);
}

void Optimizer::begin_step(StepRef step, WeightStore& weights) {
  step_ = step;
  if (device_.kind() == DeviceKind::cpu) {
    begun_.step = step.value();
    begun_.log = step.state->log;
    step_ = {&begun_, 0};
  }
  weights_ = &weights;
  if (waits_) norm_->begin();
}

void Optimizer::bucket_reduced(std::size_t bucket, Stream stream) {
  if (waits_) {
    norm_->add(bucket);
    return;
  }
  update(bucket, 1, stream);
}

void Optimizer::sum_and_update(std::size_t bucket, const PeerInboxes& peers, Stream stream) {
  ops_.sum_and_update(settings_, slice_of(bucket, 1), peers, step_, stream);
}

void Optimizer::finish_step() {
  const ProfilerRange range("optimizer");
  if (waits_) {
    const Stream compute = device_.compute_stream();
    norm_->finish(*weights_);
    device_.get<ReductionOps>().clip_scale(norm_->squares(), clip_norm_, step_, nonfinite_, norm_->clip_scale(),
                                           compute);
    if (directions_) find_directions();
    if (ratios_) ratios_->find(settings_, norm_->clip_scale(), step_, weights_->shard_ranks());
    const std::size_t buckets = arena_.buckets_per_slice();
    for (std::size_t first = 0; first < arena_.plan().buckets.size(); first += buckets) update(first, buckets, compute);
  }
  weights_->finish();
}

void Optimizer::find_directions() {
  add_momentum();
  directions_->find(weights_->working_ranks());
}

void Optimizer::add_momentum() {
  const Span span(device_.timeline(), Lane::compute, device_.compute_stream(), "momentum");
  const std::size_t buckets = arena_.buckets_per_slice();
  for (std::size_t first = 0; first < arena_.plan().buckets.size(); first += buckets) {
    UpdateSlice slice = slice_of(first, buckets);
    slice.gradient_scale = norm_->clip_scale();
    ops_.add_momentum(settings_, slice, step_, device_.compute_stream());
  }
}

void Optimizer::send_directions() {
  Communicator* const ranks = weights_->working_ranks();
  if (directions_ && ranks != nullptr) directions_->send(*ranks);
}

void Optimizer::update(std::size_t first, std::size_t buckets, Stream stream) {
  {
    const Span span(device_.timeline(), Lane::compute, stream,
                    buckets == 1 ? fmt::format("bucket {} update", first) : "update of all buckets");
    UpdateSlice slice = slice_of(first, buckets);
    if (waits_) slice.gradient_scale = norm_->clip_scale();
    if (ratios_) slice.trust_ratios = ratios_->values();
    // The last update beside backward: backward ends with the last bucket's gradients, for which all ranks wait. After
    // earlier updates, the stream has collectives for which they wait, too.
    const bool is_beside_backward = stream.handle == device_.communication_stream().handle;
    slice.yields = is_beside_backward && first + 2 == arena_.plan().buckets.size();
    weights_->add_copies(slice, first);
    ops_.update(settings_, slice, step_, stream);
  }
  for (std::size_t i = 0; i < buckets; ++i) weights_->updated(first + i, stream);
}

UpdateSlice Optimizer::slice_of(std::size_t first, std::size_t buckets) const {
  UpdateSlice slice = arena_.update_slice(first, buckets);
  slice.nonfinite = nonfinite_;
  return slice;
}

/// With clipping, the step has computed it.
const GradientNorm& Optimizer::queue_norm(WeightStore& weights) {
  if (!waits_) {
    if (!norm_) norm_.emplace(arena_, pipeline_);
    norm_->begin();
    for (std::size_t bucket = 0; bucket < arena_.plan().buckets.size(); ++bucket) norm_->add(bucket);
    norm_->finish(weights);
  }
  return *norm_;
}

void Optimizer::log_norm(StepState* state, WeightStore& weights) {
  device_.get<ReductionOps>().log_norm(queue_norm(weights).squares(), state, device_.compute_stream());
}

double Optimizer::gradient_norm(WeightStore& weights) { return queue_norm(weights).value(); }

}  // namespace ddptrain
