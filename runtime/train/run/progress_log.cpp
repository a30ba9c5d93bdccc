#include "runtime/train/run/progress_log.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr std::string_view kTraining = "training";  // the watch's name of the phase
constexpr int kLooks = 20;                          // number of checks of the step in an interval

std::string time_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::min(seconds, 1e12));
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole % 3600 / 60, whole % 60);
}

}  // namespace

void StepRate::note(double seconds, std::int64_t step, bool trains) {
  const double passed = seconds - std::exchange(then_, seconds);
  if (trains) open_ += passed;
  if (step == step_) return;
  steps_ += step - std::exchange(step_, step);
  seconds_ += std::exchange(open_, 0.0);
}

double StepRate::take() {
  const auto steps = static_cast<double>(std::exchange(steps_, 0));
  const double seconds = std::exchange(seconds_, 0.0);
  return seconds > 0.0 ? steps / seconds : 0.0;
}

ProgressLog::ProgressLog(const Watch& watch, Plan plan, std::chrono::milliseconds interval)
    : watch_(watch), plan_(std::move(plan)), interval_(interval), rate_(plan_.first), looks_(interval / kLooks, [this] {
        look();
      }) {}

void ProgressLog::look() {
  const Clock::time_point now = Clock::now();
  rate_.note(Seconds(now - start_).count(), step(), watch_.phase() == kTraining);
  if (now < next_) return;
  write(rate_.take());
  next_ = now + std::clamp<Clock::duration>((now - start_) / 10, interval_, 6 * interval_);
}

/// The count is clamped: before its first step a GPU has none, and measurements after training continue it.
std::int64_t ProgressLog::step() const {
  return std::clamp(static_cast<std::int64_t>(watch_.device_steps()), plan_.first, plan_.steps);
}

void ProgressLog::write(double rate) const {
  const std::string_view phase = watch_.phase();
  const std::int64_t step = this->step();
  if (phase == kTraining && rate > 0.0 && step < plan_.steps) {
    spdlog::info("Step {} of {}, {} {}/s, {} left", step, plan_.steps, significant(rate * plan_.units_per_step),
                 plan_.unit, time_text(static_cast<double>(plan_.steps - step) / rate));
  } else if (const Watch::Part part = watch_.part(); part.total > 0) {
    spdlog::info("Step {} of {}, {} ({} of {})", step, plan_.steps, phase, part.done, part.total);
  } else {
    spdlog::info("Step {} of {}, {}", step, plan_.steps, phase);
  }
}

}  // namespace ddptrain
