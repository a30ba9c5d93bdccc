#include "runtime/core/process/watch.h"

#include <chrono>
#include <cstdio>
#include <thread>

namespace ddptrain {
namespace {

std::int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

}  // namespace

void Watch::change(const char* what) {
  waiting_for_ = what;
  ++changes_;
}

void Watch::hang() {
  std::fputs("this rank hangs, as it was told to\n", stderr);
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

void Watch::add_steps(std::uint64_t steps) {
  steps_ += steps;
  if (steps_ >= hang_after_) hang();
}

Watch::Slot* Watch::slot(std::uint64_t sequence) {
  Slot& slot = slots_[sequence % kRecords];
  return slot.sequence == sequence ? &slot : nullptr;
}

std::uint64_t Watch::queued(const char* name, std::size_t bytes) {
  const std::uint64_t sequence = next_;
  Slot& slot = slots_[sequence % kRecords];
  slot.sequence = 0;  // readers skip it until it is complete
  slot.name = name;
  slot.bucket = bucket_.load();
  slot.bytes = bytes;
  slot.step = steps_.load();
  slot.queued = now();
  slot.started = 0;
  slot.finished = 0;
  slot.sequence = sequence;
  next_ = sequence + 1;
  return sequence;
}

void Watch::started(std::uint64_t sequence) {
  if (Slot* at = slot(sequence)) at->started = now();
}

void Watch::finished(std::uint64_t sequence) {
  if (Slot* at = slot(sequence)) at->finished = now();
}

void Watch::all_finished() {
  const std::uint64_t end = next_;
  if (end - unfinished_ > kRecords) unfinished_ = end - kRecords;
  const std::int64_t time = now();
  for (; unfinished_ < end; ++unfinished_) {
    Slot* at = slot(unfinished_);
    if (at != nullptr && at->finished == 0) at->finished = time;
  }
}

Watch::HealthCheck::HealthCheck(Watch& watch, std::function<std::string()> check) : watch_(watch) {
  const std::lock_guard lock(watch.health_mutex_);
  check_ = watch.health_checks_.insert(watch.health_checks_.end(), std::move(check));
}

Watch::HealthCheck::~HealthCheck() {
  const std::lock_guard lock(watch_.health_mutex_);
  watch_.health_checks_.erase(check_);
}

std::string Watch::health() const {
  const std::lock_guard lock(health_mutex_);
  for (const auto& check : health_checks_) {
    if (std::string trouble = check(); !trouble.empty()) return trouble;
  }
  return {};
}

std::uint64_t Watch::device_steps() const {
  const std::uint64_t* count = device_steps_;
  return count == nullptr ? steps() : *static_cast<const volatile std::uint64_t*>(count);
}

bool Watch::first_step_has_ended() const { return device_steps() > steps_before_ + (device_steps_ == nullptr ? 1 : 0); }

std::array<CollectiveRecord, Watch::kRecords> Watch::records() const {
  std::array<CollectiveRecord, kRecords> records;
  for (std::size_t i = 0; i < kRecords; ++i) {
    const Slot& slot = slots_[i];
    const std::uint64_t sequence = slot.sequence;
    if (sequence == 0) continue;
    records[i] = {sequence, slot.name, slot.bucket, slot.bytes, slot.step, slot.queued, slot.started, slot.finished};
    if (slot.sequence != sequence) records[i] = {};  // overwritten meanwhile
  }
  return records;
}

}  // namespace ddptrain
