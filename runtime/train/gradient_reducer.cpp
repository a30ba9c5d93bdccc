#include "runtime/train/gradient_reducer.h"

#include <chrono>

#include "runtime/core/error.h"

namespace ddptrain {

Communicator::Ticket start_sum(const ParameterArena& arena, std::size_t bucket, Communicator& communicator,
                               Stream stream) {
  const Tensor gradients = arena.bucket_gradients(bucket);
  return arena.sharded() ? communicator.reduce_scatter_sum(gradients, stream)
                         : communicator.all_reduce_sum(gradients, stream);
}

GradientReducer::GradientReducer(const ParameterArena& arena, Communicator* communicator, Device& device,
                                 OverlapMode mode, Reduced reduced, Reduced last_bucket, GradientTree* tree)
    : arena_(arena),
      communicator_(mode == OverlapMode::none ? nullptr : communicator),
      device_(device),
      mode_(mode),
      reduced_(std::move(reduced)),
      last_bucket_(std::move(last_bucket)),
      tree_(tree) {
  DDP_CHECK(communicator_ != nullptr || mode == OverlapMode::none, "a communicator is needed to sum gradients");
}

GradientReducer::~GradientReducer() {
  if (running_) device_.set_progress({});
}

void GradientReducer::begin(bool last_micro_step) {
  DDP_CHECK(!running_, "begin() before the micro-step in progress has finished");
  running_ = true;
  last_micro_step_ = last_micro_step;
  is_ready_.assign(arena_.specs().size(), false);
  missing_.clear();
  for (const Bucket& bucket : arena_.plan().buckets) missing_.push_back(bucket.parameter_count);
  next_bucket_ = 0;
  forked_ = false;
  newest_.reset();
  if (last_micro_step && mode_ == OverlapMode::on) {
    // Long operations let messages move, but nothing may be computed in the middle of them.
    device_.set_progress([this] {
      if (newest_) communicator_->test(*newest_);
    });
  }
}

void GradientReducer::ready(std::size_t parameter) {
  DDP_CHECK(running_, "ready({}) outside of a micro-step", parameter);
  DDP_CHECK(parameter < is_ready_.size(), "ready({}) of {} parameters", parameter, is_ready_.size());
  DDP_CHECK(!is_ready_[parameter], "ready({}): {} was reported before", parameter, arena_.specs()[parameter].name);
  is_ready_[parameter] = true;
  --missing_[arena_.plan().bucket_of[parameter]];
  if (!last_micro_step_ || mode_ == OverlapMode::off) return;
  launch_complete_buckets();
  take_finished();
}

void GradientReducer::finish() {
  DDP_CHECK(running_, "finish() outside of a micro-step");
  for (std::size_t i = 0; i < is_ready_.size(); ++i) {
    DDP_CHECK(is_ready_[i], "backward has finished without the gradient of {}", arena_.specs()[i].name);
  }
  if (last_micro_step_) {
    launch_complete_buckets();
    while (!in_flight_.empty()) {
      const auto start = std::chrono::steady_clock::now();
      communicator_->wait(in_flight_.front().ticket);
      seconds_waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      take_finished();
    }
    if (forked_) device_.wait_for(device_.compute_stream(), device_.communication_stream());
  }
  device_.set_progress({});
  running_ = false;
}

void GradientReducer::launch_complete_buckets() {
  while (next_bucket_ < missing_.size() && missing_[next_bucket_] == 0) launch(next_bucket_++);
}

void GradientReducer::launch(std::size_t bucket) {
  const NvtxRange range("bucket");
  const bool last = bucket + 1 == missing_.size();
  const Stream stream = last ? device_.compute_stream() : device_.communication_stream();
  if (!last) {
    device_.wait_for(stream, device_.compute_stream());
    forked_ = true;
  }
  const bool exchanges = communicator_ != nullptr && tree_ != nullptr && tree_->exchanges();
  if (tree_ != nullptr && !exchanges) tree_->fold(bucket, stream);
  if (communicator_ == nullptr) {
    reduced_(bucket, stream);
    return;
  }
  device_.watch().set_bucket(static_cast<int>(bucket));
  if (last && last_bucket_) {
    last_bucket_(bucket, stream);
    return;
  }
  InFlight started{bucket, stream, 0};
  Timeline* timeline = device_.timeline();
  if (timeline != nullptr) {
    started.span = timeline->begin(Lane::communication, stream, fmt::format("bucket {} gradients", bucket));
  }
  started.exchanging = exchanges;
  newest_ = started.ticket =
      exchanges ? tree_->exchange(bucket, stream) : start_sum(arena_, bucket, *communicator_, stream);
  device_.watch().set_bucket(-1);
  in_flight_.push_back(started);
}

void GradientReducer::gather(InFlight summed) {
  summed.exchanging = false;
  device_.watch().set_bucket(static_cast<int>(summed.bucket));
  newest_ = summed.ticket = tree_->gather(summed.bucket, summed.stream);
  device_.watch().set_bucket(-1);
  in_flight_.push_back(summed);
}

void GradientReducer::take_finished() {
  while (!in_flight_.empty() && communicator_->test(in_flight_.front().ticket)) {
    const InFlight arrived = in_flight_.front();
    in_flight_.pop_front();
    if (arrived.exchanging) {
      tree_->add(arrived.bucket, arrived.stream);
      if (!arena_.sharded()) {
        gather(arrived);
        continue;
      }
    }
    if (Timeline* timeline = device_.timeline()) timeline->end(arrived.span, arrived.stream);
    reduced_(arrived.bucket, arrived.stream);
  }
}

}  // namespace ddptrain
