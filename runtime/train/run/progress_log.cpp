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

std::string time_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::min(seconds, 1e12));
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole % 3600 / 60, whole % 60);
}

}  // namespace

ProgressLog::ProgressLog(const Watch& watch, Plan plan, std::chrono::milliseconds interval)
    : watch_(watch), plan_(std::move(plan)), interval_(interval), step_(plan_.first), thread_([this] { run(); }) {}

ProgressLog::~ProgressLog() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void ProgressLog::run() {
  const Clock::time_point start = then_;
  std::unique_lock lock(mutex_);
  for (auto pause = Clock::duration(interval_); !wake_.wait_for(lock, pause, [this] { return ends_; });) {
    write();
    pause = std::clamp<Clock::duration>((Clock::now() - start) / 10, interval_, 6 * interval_);
  }
}

/// The count is clamped: before its first step a GPU has none, and measurements after training continue it.
void ProgressLog::write() {
  const std::int64_t step = std::clamp(static_cast<std::int64_t>(watch_.device_steps()), step_, plan_.steps);
  const double rate =
      static_cast<double>(step - step_) / Seconds(Clock::now() - std::exchange(then_, Clock::now())).count();
  step_ = step;
  const std::string_view phase = watch_.phase();
  if (phase == "training" && rate > 0.0) {
    spdlog::info("Step {} of {}, {} {}/s, {} left", step, plan_.steps, significant(rate * plan_.units_per_step),
                 plan_.unit, time_text(static_cast<double>(plan_.steps - step) / rate));
  } else if (const Watch::Part part = watch_.part(); part.total > 0) {
    spdlog::info("Step {} of {}, {} ({} of {})", step, plan_.steps, phase, part.done, part.total);
  } else {
    spdlog::info("Step {} of {}, {}", step, plan_.steps, phase);
  }
}

}  // namespace ddptrain
