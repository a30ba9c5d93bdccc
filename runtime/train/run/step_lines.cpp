#include "runtime/train/run/step_lines.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

namespace ddptrain {
namespace {

constexpr double kShareOfNorms = 0.0005;  // of the time of steps
constexpr double kMostLinesPerNorm = 20;  // fewer norms are no curve

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

StepLines::StepLines(Trainer& trainer, const World& world, std::int64_t every, Norms norms, std::int64_t step,
                     const MetricSums& logged)
    : trainer_(trainer),
      world_(world),
      on_cpu_(trainer.device().kind() == DeviceKind::cpu),
      recorder_(trainer.log_steps(every)),
      norm_every_(norms == Norms::all ? every : 0),
      queued_(step),
      logged_(logged),
      waited_step_(step) {}

void StepLines::choose_norms(double step_seconds) {
  if (norm_every_ > 0 || trainer_.logs_gradient_norm()) return;
  // The norm would end the overlap of all-reduces with the next forward pass.
  if (trainer_.communicates() && trainer_.overlaps_next_forward()) return;
  trainer_.complete_gradients();
  trainer_.log_gradient_norm();
  trainer_.device().synchronize();
  const double start = now();
  trainer_.log_gradient_norm();
  trainer_.device().synchronize();
  const double seconds = world_.max(now() - start);
  const double lines = std::ceil(seconds / (kShareOfNorms * step_seconds * static_cast<double>(every())));
  if (lines <= kMostLinesPerNorm) norm_every_ = every() * std::max<std::int64_t>(1, std::llround(lines));
}

void StepLines::start_clock(std::int64_t step) {
  recorder_.start_clock();
  waited_step_ = step;
  seconds_waited_ = trainer_.seconds_waited();
  timed_step_ = step;
  timed_seconds_.reset();
}

bool StepLines::wants_norm(std::int64_t step) const { return norm_every_ > 0 && step % norm_every_ == 0; }

std::int64_t StepLines::next_stop(std::int64_t step) const {
  const std::int64_t stops = on_cpu_ ? every() : trainer_.logs_gradient_norm() ? 0 : norm_every_;
  return stops > 0 ? (step / stops + 1) * stops : std::numeric_limits<std::int64_t>::max();
}

void StepLines::queued(std::int64_t step, std::int64_t epoch) {
  const bool in_step = trainer_.logs_gradient_norm();
  const bool logs_norm = !in_step && wants_norm(step);
  if (logs_norm) {
    trainer_.complete_gradients();
    if (on_cpu_) recorder_.end_again(step);
  }
  for (std::int64_t line = (queued_ / every() + 1) * every(); line <= step; line += every()) {
    pending_.push_back({line, epoch, in_step || wants_norm(line), on_cpu_ ? trainer_.seconds_waited() : 0.0});
  }
  if (logs_norm) trainer_.log_gradient_norm();
  queued_ = step;
}

std::vector<StepResult> StepLines::take(std::int64_t step) {
  std::vector<Pending> lines;
  for (; !pending_.empty() && pending_.front().step <= step; pending_.pop_front()) lines.push_back(pending_.front());
  if (lines.empty()) return {};
  std::vector<MetricSums> sums;
  for (const Pending& line : lines) {
    const std::vector<MetricSums> of_line = recorder_.sums(line.step);
    sums.insert(sums.end(), of_line.begin(), of_line.end());
  }
  const std::vector<MetricSums> totals = trainer_.training_totals(sums);
  const std::vector<double> seconds = step_seconds(lines);
  std::vector<StepResult> results;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Pending& line = lines[i];
    StepResult& result = results.emplace_back(result_of(line.step, line.epoch, totals[i]));
    if (line.has_norm) result.gradient_norm = recorder_.norm(line.step);
    result.step_seconds = seconds[i];
    result.samples_per_second = static_cast<double>(trainer_.sampler().samples_per_step()) / seconds[i];
    if (!on_cpu_) continue;
    const double waited = line.seconds_waited - std::exchange(seconds_waited_, line.seconds_waited);
    result.exposed_comm_seconds = waited / static_cast<double>(line.step - std::exchange(waited_step_, line.step));
  }
  return results;
}

/// Mean time of the steps of each line, on the slowest rank.
std::vector<double> StepLines::step_seconds(const std::vector<Pending>& lines) {
  std::vector<double> mine;
  for (const Pending& line : lines) {
    const double end = recorder_.seconds(line.step);
    const double begin = timed_seconds_.value_or(recorder_.start_seconds());
    mine.push_back((end - begin) / static_cast<double>(line.step - timed_step_));
    timed_step_ = line.step;
    timed_seconds_ = end;
  }
  const std::vector<double> all = world_.all_gather(mine);
  for (std::size_t i = 0; i < all.size(); ++i) {
    double& slowest = mine[i % mine.size()];
    slowest = std::max(slowest, all[i]);
  }
  return mine;
}

StepResult StepLines::result_of(std::int64_t step, std::int64_t epoch, const MetricSums& total) {
  StepResult result;
  result.epoch = epoch;
  result.step = step;
  result.samples = step * trainer_.sampler().samples_per_step();
  line_step_ = step;
  logged_before_ = std::exchange(logged_, total);
  result.loss = (total - logged_before_).mean_loss();
  result.learning_rate = trainer_.learning_rate(step);
  return result;
}

StepResult StepLines::resumed_line(std::int64_t step, std::int64_t epoch) {
  return result_of(step, epoch, trainer_.training_totals(trainer_.metrics().training()).front());
}

}  // namespace ddptrain
