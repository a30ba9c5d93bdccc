#include "runtime/train/run/progress_log.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

using std::chrono::milliseconds;
using Seconds = std::chrono::duration<double>;

constexpr std::string_view kTraining = "training";  // the watch's name of the phase
constexpr int kLooks = 20;                          // number of checks of the step in an interval
constexpr milliseconds kBarInterval{100};
constexpr milliseconds kBarRateInterval{1000};
constexpr std::size_t kLongestBar = 30;
constexpr std::size_t kShortestBar = 5;

std::string time_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::min(seconds, 1e12));
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole % 3600 / 60, whole % 60);
}

/// What the run does besides training steps.
std::string activity_text(std::string_view phase, Watch::Part part, const std::string& after) {
  if (phase == "baseline") {
    const std::string time =
        part.total > 0 ? fmt::format(": {} of at most {} s of timed steps", part.done, part.total) : "";
    return "Measuring the scaling efficiency" + time;
  }
  if (phase == "evaluation") {
    const std::string batch = part.total > 0 ? fmt::format(": batch {} of {}", part.done, part.total) : "";
    return fmt::format("Evaluating{}{}", batch, after);
  }
  if (phase == "generation") return "Writing a sample" + after;
  if (phase == "checkpoint") return "Writing a checkpoint" + after;
  if (phase == "tuning") return "Timing GPU kernels" + after;
  if (phase == "trace") return "Recording a trace";
  return fmt::format("Now: {}{}", phase, after);
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

ProgressLog::ProgressLog(const Watch& watch, Plan plan, milliseconds interval)
    : watch_(watch),
      plan_(std::move(plan)),
      interval_(interval),
      bar_(spdlog::should_log(spdlog::level::info) ? status_line() : nullptr),
      rate_(plan_.first),
      looks_(bar_ != nullptr ? std::min(kBarInterval, interval / kLooks) : interval / kLooks, [this] { look(); }) {}

ProgressLog::~ProgressLog() {
  looks_.stop();
  if (bar_ != nullptr) bar_->set("");
}

void ProgressLog::look() {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  rate_.note(Seconds(now - start_).count(), step(), watch_.phase() == kTraining);
  if (bar_ != nullptr) {
    if (now >= next_ || shown_rate_ == 0.0) {
      if (const double rate = rate_.take(); rate > 0.0) shown_rate_ = rate;
      next_ = now + kBarRateInterval;
    }
    bar_->set(with_bar(text(shown_rate_)));
    return;
  }
  if (now < next_) return;
  spdlog::info("{}", text(rate_.take()));
  next_ = now + std::clamp<Clock::duration>((now - start_) / 10, interval_, 6 * interval_);
}

void ProgressLog::logged(std::int64_t step, double loss, double steps_per_second) {
  const std::lock_guard lock(mutex_);
  loss_ = loss;
  loss_step_ = step;
  if (!plan_.line_per_logged_step) return;
  spdlog::info("{}", training_text(step, steps_per_second));
  if (bar_ == nullptr) next_ = std::max(next_, Clock::now() + interval_);
}

/// The count is clamped: before its first step a GPU has none, and measurements after training continue it.
std::int64_t ProgressLog::step() const {
  return std::clamp(static_cast<std::int64_t>(watch_.device_steps()), plan_.first, plan_.steps);
}

std::string ProgressLog::text(double rate) const {
  const std::string_view phase = watch_.phase();
  if (phase == kTraining) return training_text(step(), rate);
  return activity_text(phase, watch_.part(), fmt::format(", after step {}/{}", step(), plan_.steps));
}

std::string ProgressLog::training_text(std::int64_t step, double rate) const {
  const std::int64_t epoch = std::clamp<std::int64_t>((step - 1) / plan_.steps_per_epoch + 1, 1, plan_.epochs);
  std::string text = fmt::format("Step {}/{}, epoch {}/{}", step, plan_.steps, epoch, plan_.epochs);
  if (!std::isnan(loss_)) {
    text += fmt::format(", loss {:.4f}", loss_);
    if (loss_step_ != step) text += fmt::format(" (step {})", loss_step_);
  }
  if (rate <= 0.0 || (step == plan_.steps && !plan_.line_per_logged_step)) return text;
  text += fmt::format(", {} {}/s", significant(rate * plan_.units_per_step), plan_.unit);
  if (step == plan_.steps) return text;
  return text + fmt::format(", {} left", time_text(static_cast<double>(plan_.steps - step) / rate));
}

/// The bar takes what the text leaves of the line.
std::string ProgressLog::with_bar(const std::string& text) const {
  constexpr std::size_t kFrame = 3;  // brackets and a space
  const std::size_t columns = bar_->columns();
  if (columns < text.size() + kFrame + kShortestBar) return text;
  const std::size_t width = std::min(kLongestBar, columns - text.size() - kFrame);
  const double share = static_cast<double>(step()) / static_cast<double>(std::max<std::int64_t>(1, plan_.steps));
  const auto done = static_cast<std::size_t>(share * static_cast<double>(width));
  return fmt::format("[{}{}] {}", std::string(done, '='), std::string(width - done, ' '), text);
}

}  // namespace ddptrain
