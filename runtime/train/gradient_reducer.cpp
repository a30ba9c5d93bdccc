#include "runtime/train/gradient_reducer.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

/// Adds the time for which it lives.
class Clocked {
 public:
  explicit Clocked(double& seconds) : seconds_(seconds) {}
  ~Clocked() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  Clocked(const Clocked&) = delete;
  Clocked& operator=(const Clocked&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

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
  if (!running_ && in_flight_.empty()) return;
  device_.set_progress({});
  device_.set_unfinished({});
  if (running_ || std::uncaught_exceptions() > 0) return;  // waiting for a peer that may be gone would hang
  try {
    for (const InFlight& sum : in_flight_) communicator_->wait(sum.ticket);
  } catch (const std::exception& error) {
    spdlog::warn("sums of gradients did not end: {}", error.what());
  }
}

/// Beneath the next forward pass.
bool GradientReducer::goes_on() const { return mode_ == OverlapMode::on && device_.kind() == DeviceKind::cpu; }

void GradientReducer::begin(bool last_micro_step) {
  DDP_CHECK(!running_, "begin() before the micro-step in progress has finished");
  device_.finish_unfinished();
  running_ = true;
  last_micro_step_ = last_micro_step;
  is_ready_.assign(arena_.specs().size(), false);
  missing_.clear();
  for (const Bucket& bucket : arena_.plan().buckets) missing_.push_back(bucket.parameter_count);
  next_bucket_ = 0;
  forked_ = false;
  newest_.reset();
  if (last_micro_step && mode_ != OverlapMode::off && communicates()) {
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
    if (goes_on()) {
      take_finished();
    } else {
      wait_for_all();
    }
    if (forked_) device_.wait_for(device_.compute_stream(), device_.communication_stream());
  }
  running_ = false;
  if (in_flight_.empty()) return device_.set_progress({});
  device_.set_unfinished([this] { wait_for_all(); });
}

void GradientReducer::wait_for(std::size_t parameter) {
  if (in_flight_.empty()) return;
  take_finished();
  const auto sum = std::ranges::find(in_flight_, arena_.plan().bucket_of.at(parameter), &InFlight::bucket);
  if (sum == in_flight_.end()) return;
  {
    const Watch::Wait wait(device_.watch(), "all-reduce");
    const Span span(device_.timeline(), Lane::compute, device_.compute_stream(),
                    fmt::format("wait for bucket {}", sum->bucket));
    const Clocked clocked(seconds_waited_);
    while (!communicator_->test(sum->ticket)) std::this_thread::yield();
  }
  take_finished();
}

void GradientReducer::wait_for_all() {
  while (!in_flight_.empty()) {
    {
      const Clocked clocked(seconds_waited_);
      communicator_->wait(in_flight_.front().ticket);
    }
    take_finished();
  }
}

void GradientReducer::launch_complete_buckets() {
  while (next_bucket_ < missing_.size() && missing_[next_bucket_] == 0) launch(next_bucket_++);
}

void GradientReducer::launch(std::size_t bucket) {
  if (communicator_ != nullptr && arena_.reaches_peers()) return;  // Optimizer::finish_step() adds up
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
  for (std::size_t i = 0; i < in_flight_.size();) {
    if (communicator_->test(in_flight_[i].ticket)) {
      const InFlight arrived = in_flight_[i];
      in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(i));
      take(arrived);
    } else if (goes_on()) {
      ++i;
    } else {
      return;
    }
  }
  if (running_ || !in_flight_.empty()) return;
  device_.set_progress({});
  device_.set_unfinished({});
}

void GradientReducer::take(const InFlight& arrived) {
  if (arrived.exchanging) {
    tree_->add(arrived.bucket, arrived.stream);
    if (!arena_.sharded()) return gather(arrived);
  }
  if (Timeline* timeline = device_.timeline()) timeline->end(arrived.span, arrived.stream);
  reduced_(arrived.bucket, arrived.stream);
}

}  // namespace ddptrain
