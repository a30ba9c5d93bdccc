#include "runtime/train/step/gradient_reducer.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "runtime/core/clocked.h"
#include "runtime/core/error.h"
#include "runtime/train/step/step_order.h"

namespace ddptrain {

GradientReducer::GradientReducer(const ParameterArena& arena, GradientSync& sync, OverlapMode mode,
                                 GradientSync::Reduced reduced, VirtualRankSums* virtual_ranks)
    : arena_(arena),
      sync_(sync),
      virtual_ranks_(virtual_ranks),
      communicator_(arena.communicator()),
      device_(arena.device()),
      mode_(mode),
      reduced_(std::move(reduced)) {
  for (const Unit& unit : arena.units()) unit_buckets_.push_back(buckets_of(arena.plan(), unit));
}

GradientReducer::~GradientReducer() {
  if (!running_ && in_flight_.empty()) return;
  device_.set_progress({});
  device_.set_unfinished({});
  if (running_ || std::uncaught_exceptions() > 0) return;  // waiting for a peer that may be gone would hang
  try {
    for (const InFlight& sum : in_flight_) communicator_.wait(sum.ticket);
  } catch (const std::exception& error) {
    spdlog::warn("sums of gradients did not end: {}", error.what());
  }
}

bool GradientReducer::overlaps_next_forward() const {
  return mode_ == OverlapMode::on && device_.kind() == DeviceKind::cpu;
}

void GradientReducer::begin(std::int64_t pass, bool last) {
  DDP_CHECK(!running_, "begin() before the pass in progress has finished");
  device_.finish_unfinished();
  running_ = true;
  sums_ = is_reduced(last, sync_.sums_every_pass());
  sync_.begin_pass(pass, last);
  is_ready_.assign(arena_.specs().size(), false);
  missing_.clear();
  for (const Bucket& bucket : arena_.plan().buckets) missing_.push_back(bucket.parameter_count);
  next_bucket_ = 0;
  claimed_.assign(missing_.size(), std::nullopt);
  forked_ = false;
  newest_.reset();
  if (sums_ && mode_ != OverlapMode::off && communicates()) {
    // Long operations let messages move, but nothing may be computed in the middle of them.
    device_.set_progress([this] {
      if (newest_) communicator_.test(*newest_);
    });
  }
}

void GradientReducer::ready(std::size_t parameter) {
  DDP_CHECK(running_, "ready({}) outside of a micro-step", parameter);
  DDP_CHECK(parameter < is_ready_.size(), "ready({}) of {} parameters", parameter, is_ready_.size());
  DDP_CHECK(!is_ready_[parameter], "ready({}): {} was reported before", parameter, arena_.specs()[parameter].name);
  is_ready_[parameter] = true;
  --missing_[arena_.plan().bucket_of[parameter]];
  if (!sums_ || mode_ == OverlapMode::off) return;
  launch_complete_buckets();
  take_finished();
}

void GradientReducer::finish() {
  DDP_CHECK(running_, "finish() outside of a micro-step");
  for (std::size_t i = 0; i < is_ready_.size(); ++i) {
    DDP_CHECK(is_ready_[i], "backward has finished without the gradient of {}", arena_.specs()[i].name);
  }
  if (sums_) {
    launch_complete_buckets();
    if (overlaps_next_forward()) {
      take_finished();
    } else {
      wait_for_all();
    }
    if (forked_) device_.wait_for(device_.compute_stream(), device_.communication_stream());
  }
  running_ = false;
  if (in_flight_.empty()) {
    device_.set_progress({});
    return;
  }
  device_.set_unfinished([this] { wait_for_all(); });
}

void GradientReducer::claim(std::size_t bucket) {
  if (!communicates()) return;  // nothing is sent, so passes may write over each other's gradients
  const std::vector<std::size_t>& places = arena_.gradient_places().place;
  const auto is_there = [&](const InFlight& sum) { return places[sum.bucket] == places[bucket]; };
  for (auto sum = std::ranges::find_if(in_flight_, is_there); sum != in_flight_.end();
       sum = std::ranges::find_if(in_flight_, is_there)) {
    const Clocked clocked(seconds_waited_);
    communicator_.wait(sum->ticket);
    take_finished();
  }
  const std::optional<std::size_t> before = std::exchange(claimed_[places[bucket]], bucket);
  DDP_CHECK(!before || before == bucket || *before < next_bucket_, "bucket {} takes the place of {}, which is not sent",
            bucket, *before);
  sync_.claim(bucket);
}

void GradientReducer::claim_unit(std::size_t unit) {
  if (unit > 0) {
    for (const std::size_t bucket : unit_buckets_[unit - 1]) claim(bucket);
  }
  for (const std::size_t bucket : unit_buckets_[unit]) claim(bucket);
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
    while (!communicator_.test(sum->ticket)) std::this_thread::yield();
  }
  take_finished();
}

void GradientReducer::wait_for_all() {
  while (!in_flight_.empty()) {
    {
      const Clocked clocked(seconds_waited_);
      communicator_.wait(in_flight_.front().ticket);
    }
    take_finished();
  }
}

void GradientReducer::launch_complete_buckets() {
  while (next_bucket_ < missing_.size() && missing_[next_bucket_] == 0) launch(next_bucket_++);
}

void GradientReducer::launch(std::size_t bucket) {
  const bool last = bucket + 1 == missing_.size();
  const Stream stream = last ? device_.compute_stream() : device_.communication_stream();
  if (!last) {
    device_.wait_for(stream, device_.compute_stream());
    forked_ = true;
  }
  device_.watch().set_bucket(static_cast<int>(bucket));
  if (virtual_ranks_ != nullptr) virtual_ranks_->fold(bucket, stream, communicates());
  note(bucket, stream, sync_.start(bucket, stream, reduced_));
  device_.watch().set_bucket(-1);
}

/// Records the running operation of the bucket, if there is one.
void GradientReducer::note(std::size_t bucket, Stream stream, std::optional<Communicator::Ticket> ticket) {
  if (!ticket) return;
  newest_ = ticket;
  in_flight_.push_back({bucket, stream, *ticket});
}

void GradientReducer::take_finished() {
  for (std::size_t i = 0; i < in_flight_.size();) {
    if (communicator_.test(in_flight_[i].ticket)) {
      const InFlight arrived = in_flight_[i];
      in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(i));
      device_.watch().set_bucket(static_cast<int>(arrived.bucket));
      note(arrived.bucket, arrived.stream, sync_.advance(arrived.bucket, arrived.stream, reduced_));
      device_.watch().set_bucket(-1);
    } else if (overlaps_next_forward()) {
      ++i;
    } else {
      return;
    }
  }
  if (running_ || !in_flight_.empty()) return;
  device_.set_progress({});
  device_.set_unfinished({});
}

}  // namespace ddptrain
