#include "runtime/train/run/run_lines.h"

#include <chrono>
#include <cmath>
#include <limits>
#include <vector>

#include "runtime/device/queueing.h"
#include "runtime/train/measure/gather_sensors.h"

namespace ddptrain {
namespace {

ProgressLog::Plan progress_plan(const Trainer& trainer, const RunOptions& options, std::int64_t first_step) {
  const DistributedSampler& sampler = trainer.sampler();
  const Model& model = trainer.model();
  return {.first = first_step,
          .steps = total_steps(options, sampler.steps_per_epoch()),
          .steps_per_epoch = sampler.steps_per_epoch(),
          .epochs = total_epochs(options, sampler.steps_per_epoch()),
          .units_per_step = static_cast<double>(sampler.samples_per_step() * model.predictions_per_sample()),
          .unit = model.sample_unit(),
          .line_per_logged_step = options.log_every.value_or(0) > 0};
}

}  // namespace

RunLines::RunLines(Trainer& trainer, const World& world, const RunOptions& options, Report* report, WindowTimes& times,
                   RunGuard& guard, const Start& start)
    : trainer_(trainer), world_(world), options_(options), report_(report), times_(times), guard_(guard) {
  const std::int64_t every = log_every(options, total_steps(options, trainer.sampler().steps_per_epoch()));
  const StepLines::Norms norms = options.log_every ? StepLines::Norms::all : StepLines::Norms::cheap;
  if (every > 0) lines_.emplace(trainer, world, every, norms, start.step, start.logged);
  if (report == nullptr) return;
  const std::chrono::milliseconds interval(std::llround(1e3 * options.progress_seconds));
  progress_.emplace(trainer.device().watch(), progress_plan(trainer, options, start.step), interval);
}

std::int64_t RunLines::most_queued() const {
  return lines_ ? lines_->most_queued() : std::numeric_limits<std::int64_t>::max();
}

void RunLines::start_clock(std::int64_t step) {
  if (lines_) lines_->start_clock(step);
}

void RunLines::choose_norms(double step_seconds) {
  if (lines_) lines_->choose_norms(step_seconds);
}

std::int64_t RunLines::next_stop(std::int64_t step) const {
  return lines_ ? lines_->next_stop(step) : std::numeric_limits<std::int64_t>::max();
}

void RunLines::queued(std::int64_t step, std::int64_t epoch) {
  if (!lines_) return;
  const Queueing queueing(trainer_.device());
  lines_->queued(step, epoch);
}

void RunLines::write(std::int64_t step) {
  if (!lines_) return;
  std::vector<StepResult> results = lines_->take(step);
  if (results.empty()) return;
  std::vector<SensorWindow> gpus;
  if (trainer_.device().kind() != DeviceKind::cpu) gpus = gather_sensors(world_, times_.take_logged_readings());
  bool finite = true;
  for (StepResult& result : results) {
    finite = finite && std::isfinite(result.loss);
    result.gpus = gpus;
    if (options_.log_every) times_.add_line(result);
    write_line(result);
  }
  if (!finite) guard_.check_finite();
}

void RunLines::write_line(const StepResult& result) {
  if (report_ == nullptr) return;
  report_->step(result);
  progress_->logged(result.step, result.loss, result.step_seconds ? 1.0 / *result.step_seconds : 0.0);
}

void RunLines::write_resumed(std::int64_t step, std::int64_t epoch) {
  if (lines_ && step % lines_->every() == 0) write_line(lines_->resumed_line(step, epoch));
}

void RunLines::end_epoch() {
  if (lines_) lines_->end_epoch();
}

MetricSums RunLines::logged_before(std::int64_t step) const {
  return lines_ ? lines_->logged_before(step) : MetricSums{};
}

}  // namespace ddptrain
