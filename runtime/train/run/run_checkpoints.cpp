#include "runtime/train/run/run_checkpoints.h"

#include <spdlog/spdlog.h>

#include <limits>
#include <utility>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

constexpr double kLongWait = 0.1;  // seconds of waiting for the previous checkpoint that are not reported

}  // namespace

RunCheckpoints::RunCheckpoints(CheckpointWriter* writer, const World& world, Report* report, std::int64_t steps,
                               std::int64_t step)
    : writer_(writer), world_(world), report_(report), steps_(steps), last_step_(step) {
  if (writer != nullptr) totals_.emplace();
}

bool RunCheckpoints::is_due(std::int64_t step) const {
  if (writer_ == nullptr || step == last_step_) return false;
  const std::int64_t every = every_steps();
  return asked_ || step == steps_ || (every > 0 && step % every == 0);
}

bool RunCheckpoints::is_due_by_time() const {
  const double every = writer_ != nullptr ? writer_->options().every_seconds : 0.0;
  return every > 0.0 && std::chrono::duration<double>(Clock::now() - last_time_).count() >= every;
}

std::int64_t RunCheckpoints::next_stop(std::int64_t step) const {
  const std::int64_t every = every_steps();
  return every > 0 ? (step / every + 1) * every : std::numeric_limits<std::int64_t>::max();
}

void RunCheckpoints::wait_for_previous() {
  if (!writer_->busy()) return;
  const Clock::time_point start = Clock::now();
  report(writer_->wait());
  const double waited = std::chrono::duration<double>(Clock::now() - start).count();
  if (report_ == nullptr || waited < kLongWait) return;
  spdlog::warn("Training waited {:.2f} s for the checkpoint before: they are due faster than they are written", waited);
}

void RunCheckpoints::start(RunProgress progress) {
  asked_ = false;
  last_time_ = Clock::now();
  last_step_ = progress.step;
  report(writer_->start(std::move(progress)));
}

void RunCheckpoints::poll() {
  if (writer_ != nullptr) report(writer_->poll());
}

void RunCheckpoints::wait() { report(writer_->wait()); }

void RunCheckpoints::report(const std::optional<WrittenCheckpoint>& checkpoint) {
  if (!checkpoint) return;
  totals_->add(*checkpoint);
  if (report_ != nullptr) report_->checkpoint(*checkpoint);
  if (checkpoint->error.empty()) {
    newest_ = checkpoint->path;
    step_before_newest_ = std::exchange(newest_step_, checkpoint->step);
    return;
  }
  const std::string message = fmt::format("the checkpoint of step {} was not written: {}. Those before it are intact",
                                          checkpoint->step, checkpoint->error);
  if (writer_->options().stop_on_error) {
    throw Error(message + "; --on-checkpoint-error continue trains on without it", true);
  }
  if (world_.rank() != 0) return;
  spdlog::error("{}; {}", message, checkpoint->step == steps_ ? "the run ends without it" : "training goes on");
}

}  // namespace ddptrain
