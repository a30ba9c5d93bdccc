#include "runtime/train/step/step_recorder.h"

#include <algorithm>
#include <limits>

#include "runtime/core/clocked.h"
#include "runtime/core/error.h"
#include "runtime/ops/optimizers/optimizer.h"

namespace ddptrain {
namespace {

constexpr std::int64_t kMostSlots = 1024;
constexpr std::int64_t kMostSums = 65536;

}  // namespace

StepRecorder::StepRecorder(std::int64_t every, const MetricBuffers& metrics, StepState* state, Device& device)
    : every_(every),
      slots_(std::clamp<std::int64_t>(kMostSums / static_cast<std::int64_t>(metrics.count()), 4, kMostSlots)),
      ranks_(metrics.count()),
      state_(state),
      device_(device),
      sums_(device.allocate_pinned(static_cast<std::size_t>(slots_) * ranks_ * sizeof(MetricSums))),
      norms_(device.allocate_pinned(static_cast<std::size_t>(slots_) * sizeof(double))),
      nanoseconds_(device.allocate_pinned(static_cast<std::size_t>(slots_ + 1) * sizeof(std::uint64_t))) {
  DDP_CHECK(every > 0, "a log of no steps");
  StepLog log;
  // Such a number of steps is never reached.
  log.every = static_cast<std::uint32_t>(std::min<std::int64_t>(every, std::numeric_limits<std::uint32_t>::max()));
  log.slots = static_cast<std::uint32_t>(slots_);
  log.ranks = static_cast<std::uint32_t>(ranks_);
  log.training = metrics.logged();
  log.sums = static_cast<MetricSums*>(sums_.data());
  log.norms = static_cast<double*>(norms_.data());
  log.nanoseconds = static_cast<std::uint64_t*>(nanoseconds_.data());
  device.copy_to_device(&state->log, &log, sizeof(log));
}

void StepRecorder::start_clock() { device_.get<OptimizerOps>().advance(state_, 0, device_.compute_stream()); }

void StepRecorder::end_again(std::int64_t step) {
  DDP_CHECK(device_.kind() == DeviceKind::cpu, "a GPU's step has ended when the GPU says so");
  const auto done = static_cast<std::uint64_t>(step);
  if (state_->log.logs(done)) state_->log.note_time(done - 1, done, steady_nanoseconds());
}

std::vector<MetricSums> StepRecorder::sums(std::int64_t step) const {
  const auto* of_step = static_cast<const MetricSums*>(sums_.data()) + slot(step) * ranks_;
  return {of_step, of_step + ranks_};
}

double StepRecorder::norm(std::int64_t step) const { return static_cast<const double*>(norms_.data())[slot(step)]; }

double StepRecorder::seconds(std::int64_t step) const { return seconds_in(slot(step)); }

double StepRecorder::start_seconds() const { return seconds_in(static_cast<std::size_t>(slots_)); }

double StepRecorder::seconds_in(std::size_t slot) const {
  return 1e-9 * static_cast<double>(static_cast<const std::uint64_t*>(nanoseconds_.data())[slot]);
}

}  // namespace ddptrain
