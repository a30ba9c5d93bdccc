#include "runtime/train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "runtime/core/error.h"

namespace ddptrain {

namespace {

PeerInboxes inboxes_of(const PeerMemory& memory, int rank) {
  PeerInboxes inboxes;
  inboxes.rank = rank;
  inboxes.size = static_cast<int>(memory.of_rank.size());
  std::copy(memory.of_rank.begin(), memory.of_rank.end(), inboxes.of_rank.begin());
  return inboxes;
}

}  // namespace

Optimizer::Optimizer(const OptimizerSettings& settings, float clip_norm, const ParameterArena& arena, Device& device,
                     Communicator& communicator, bool fused_sum, NonFinite* nonfinite, OnNonFinite on_nonfinite)
    : settings_(settings),
      clip_norm_(clip_norm),
      arena_(arena),
      device_(device),
      ops_(device.get<OptimizerOps>()),
      communicator_(communicator),
      nonfinite_(nonfinite),
      on_nonfinite_(on_nonfinite) {
  const OptimizerRule& rule = rule_of(settings.kind);
  DDP_CHECK(!rule.whole_parameters || !arena.sharded(), "{} needs whole parameters", rule.name);
  DDP_CHECK(!needs_norm() || nonfinite != nullptr, "a norm that is not finite must be noted");
  if (needs_norm()) clip_ = device_.allocate((square_count() + 1) * sizeof(float));
  const std::size_t last = arena.plan().buckets.size() - 1;
  const std::size_t inbox_bytes = ops_.inbox_bytes(settings.kind, arena.update_slice(last), communicator.size());
  why_not_fused_ = what_forbids_fusing(fused_sum, inbox_bytes);
  find_peers(why_not_fused_.empty() ? inbox_bytes : 0);
  if (!arena.reaches_peers()) return;
  PeerMemory memory = communicator.allocate_for_peers(ops_.meeting_bytes());
  DDP_CHECK(!memory.of_rank.empty(), "ranks reach each other's parameters and nothing else");
  meeting_ = inboxes_of(memory, communicator.rank());
  meeting_memory_ = std::move(memory.mine);
}

std::string Optimizer::what_forbids_fusing(bool wanted, std::size_t inbox_bytes) const {
  if (!wanted) return "the fused sum is off";
  if (clip_norm_ > 0.0f) return "clipping needs all sums before the first update";
  if (needs_norm()) return "a step that may be left out needs all sums before the first update";
  if (arena_.sharded()) return "optimizer state is sharded";
  if (inbox_bytes == 0) return "not for this optimizer, number of ranks or size of the last bucket";
  return {};
}

/// All ranks come to the same answer: those that fuse wait for each other.
void Optimizer::find_peers(std::size_t inbox_bytes) {
  PeerMemory memory = communicator_.allocate_for_peers(inbox_bytes);
  if (memory.of_rank.empty()) {
    if (why_not_fused_.empty()) why_not_fused_ = "GPUs do not reach each other's memory, or another rank cannot";
    return;
  }
  peers_ = inboxes_of(memory, communicator_.rank());
  inbox_ = std::move(memory.mine);
}

std::size_t Optimizer::square_count() const {
  return arena_.whole_chunks() ? static_cast<std::size_t>(arena_.square_count()) : arena_.plan().buckets.size();
}

Tensor Optimizer::squares() const { return clip_.view(DType::f32, {static_cast<std::int64_t>(square_count())}); }

float* Optimizer::clip_scale() const { return static_cast<float*>(clip_.data()) + square_count(); }

void Optimizer::begin_step(StepRef step, bool communicates) {
  step_ = step;
  if (device_.kind() == DeviceKind::cpu) {
    begun_.step = step.value();
    step_ = {&begun_, 0};
  }
  gathers_ = communicates && arena_.sharded();
  if (needs_norm()) clear_others_squares();
}

/// This rank writes the squares of its own chunks; those of others are added to zeros.
void Optimizer::clear_others_squares() {
  if (!arena_.whole_chunks() || !arena_.sharded()) return;
  device_.zero(squares().data, squares().bytes(), device_.compute_stream());
}

void Optimizer::add_squares(std::size_t bucket, Stream stream) {
  if (arena_.whole_chunks()) {
    ops_.chunk_squares(arena_.update_slice(bucket), arena_.first_square(), squares().as<float>(), stream);
  } else {
    ops_.sum_of_squares(arena_.reduced_gradients(bucket), squares().as<float>() + bucket, stream);
  }
}

double Optimizer::gradient_norm(bool communicates) {
  device_.finish_unfinished();
  if (!needs_norm()) find_squares(communicates);
  std::vector<float> sums(square_count());
  device_.copy_to_host(sums.data(), squares().data, squares().bytes());
  return std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0));
}

void Optimizer::find_squares(bool communicates) {
  if (clip_.data() == nullptr) clip_ = device_.allocate((square_count() + 1) * sizeof(float));
  const Stream compute = device_.compute_stream();
  const std::size_t buckets = arena_.plan().buckets.size();
  clear_others_squares();
  if (communicates && sums_last_bucket()) {
    communicator_.wait(communicator_.all_reduce_sum(arena_.bucket_gradients(buckets - 1), compute));
  }
  for (std::size_t bucket = 0; bucket < buckets; ++bucket) add_squares(bucket, compute);
  if (communicates && arena_.sharded()) communicator_.wait(communicator_.all_reduce_sum(squares(), compute));
}

void Optimizer::bucket_reduced(std::size_t bucket, Stream stream) {
  if (needs_norm()) return add_squares(bucket, stream);
  update(bucket, stream);
  if (gathers_) gather(bucket, stream);
}

void Optimizer::sum_and_update(std::size_t bucket, Stream stream) {
  const Span span(device_.timeline(), Lane::communication, stream, fmt::format("bucket {} sum and update", bucket));
  UpdateSlice slice = arena_.update_slice(bucket);
  slice.nonfinite = nonfinite_;
  ops_.sum_and_update(settings_, slice, peers_, step_, stream);
}

void Optimizer::finish_step() {
  if (gathers_ && arena_.reaches_peers()) return sum_and_update_by_peers();
  if (needs_norm()) scale_and_update();
  if (gathers_) communicator_.wait(last_gather_);
}

void Optimizer::sum_and_update_by_peers() {
  const Stream compute = device_.compute_stream();
  sum_by_peers();
  if (needs_norm()) {
    communicator_.wait(communicator_.all_reduce_sum(squares(), compute));
    ops_.clip_scale(squares(), clip_norm_, step_, nonfinite_, clip_scale(), compute);
  }
  for (std::size_t bucket = 0; bucket < arena_.plan().buckets.size(); ++bucket) update(bucket, compute);
  ops_.meet(meeting_, compute);
}

void Optimizer::sum_by_peers() {
  const Stream compute = device_.compute_stream();
  const Span span(device_.timeline(), Lane::communication, compute, "sum of gradients");
  ops_.meet(meeting_, compute);
  for (std::size_t bucket = 0; bucket < arena_.plan().buckets.size(); ++bucket) {
    ops_.add_nodes(arena_.gradient_parts(bucket), arena_.reduced_gradients(bucket), compute);
    if (needs_norm()) add_squares(bucket, compute);
  }
}

/// A bucket is gathered while the next one is updated.
void Optimizer::scale_and_update() {
  const Stream compute = device_.compute_stream();
  const Stream communication = device_.communication_stream();
  if (gathers_) communicator_.wait(communicator_.all_reduce_sum(squares(), compute));
  ops_.clip_scale(squares(), clip_norm_, step_, nonfinite_, clip_scale(), compute);
  for (std::size_t bucket = 0; bucket < arena_.plan().buckets.size(); ++bucket) {
    update(bucket, compute);
    if (!gathers_) continue;
    device_.wait_for(communication, compute);
    gather(bucket, communication);
  }
  if (gathers_) device_.wait_for(compute, communication);
}

void Optimizer::update(std::size_t bucket, Stream stream) {
  const Span span(device_.timeline(), Lane::compute, stream, fmt::format("bucket {} update", bucket));
  UpdateSlice slice = arena_.update_slice(bucket);
  slice.nonfinite = nonfinite_;
  if (needs_norm()) slice.gradient_scale = clip_scale();
  if (gathers_ && arena_.reaches_peers()) slice.peer_weights = arena_.peer_weights(bucket);
  ops_.update(settings_, slice, step_, stream);
}

void Optimizer::gather(std::size_t bucket, Stream stream) {
  last_gather_ = communicator_.all_gather(arena_.bucket_weights(bucket), stream);
}

}  // namespace ddptrain
