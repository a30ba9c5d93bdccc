#include "runtime/train/run/training_run.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/comm/agreed_signal.h"
#include "runtime/core/clocked.h"
#include "runtime/core/error.h"
#include "runtime/core/process/host.h"
#include "runtime/device/queueing.h"
#include "runtime/train/replica/replica_check.h"
#include "runtime/train/run/after_training.h"
#include "runtime/train/run/request.h"
#include "runtime/train/run/run_checkpoints.h"
#include "runtime/train/run/run_guard.h"
#include "runtime/train/run/run_lines.h"
#include "runtime/train/run/step_pace.h"
#include "runtime/train/run/window_times.h"

namespace ddptrain {
namespace {

using Clock = std::chrono::steady_clock;

/// An action after every `every` steps (above 0) of the run. Each ends a window of steps, and at the end of a window
/// the host waits for the device, so a frequent one slows training down.
struct Periodic {
  std::int64_t every;
  std::function<void()> act;
  bool also_at_end = false;  ///< It is due after the last step, too.
  /// Before the step's exchange with other groups, as the step's checkpoint is written, whose weights it needs. After
  /// the last exchange, the checkpoint is written again.
  bool before_exchange = false;
};

/// Trains in windows of steps. A window ends if one of `after_windows_` or an exchange with other groups
/// (OuterLoop::next_stop()) is due, and after the eager steps of the run. Within a window, steps are queued up to the
/// next stop of the host: a piece after which the ranks agree, a logged step, a checkpoint.
class TrainingRun {
 public:
  TrainingRun(Trainer& trainer, const World& world, const RunOptions& options, Report* report, const RunHooks& hooks)
      : trainer_(trainer),
        world_(world),
        device_(trainer.device()),
        options_(options),
        report_(report),
        hooks_(hooks),
        steps_(total_steps(options, trainer.sampler().steps_per_epoch())),
        step_(hooks.resumed != nullptr ? hooks.resumed->step : 0),
        guard_(trainer, world),
        times_(trainer, world, hooks.sensors),
        checkpoints_(hooks.checkpoints, world, report, steps_, step_),
        lines_(trainer, world, options, report, times_, guard_,
               {step_, hooks.resumed != nullptr ? hooks.resumed->logged_sums : MetricSums{}}),
        pace_(world, device_, lines_.most_queued() / 2),
        piece_end_(step_) {
    if (hooks.resumed != nullptr) {
      result_.epochs = hooks.resumed->epochs;
      epoch_sums_ = hooks.resumed->epoch_sums;
    }
    if (options.verify_every > 0) after_windows_.push_back({options.verify_every, [this] { check_replicas(); }});
    if (options.eval_every > 0) after_windows_.push_back({options.eval_every, [this] { evaluate_within_epoch(); }});
    if (options.sample_every > 0) {
      after_windows_.push_back({options.sample_every, [this] { sample_texts(); }, true, hooks.outer != nullptr});
    }
    after_windows_.push_back({steps_per_epoch(), [this] { finish_epoch(); }, true});
  }

  RunResult run() {
    if (step_ > epoch_begin()) repeat_actions_of_resumed_step();
    while (step_ < steps_) {
      run_window(end_of_window());
      do_what_is_due();
    }
    if (checkpoints_.enabled()) wait_for_checkpoint();
    finish_training();
    if (times_.windows() > 0) {  // otherwise resumed after the last step: there is no step to measure
      measure_after_training(trainer_, world_, options_, hooks_.sensors, times_, result_);
    }
    result_.end_signal = agreed_end_signal(world_);
    return std::move(result_);
  }

 private:
  std::int64_t steps_per_epoch() const { return trainer_.sampler().steps_per_epoch(); }
  /// The number of the current epoch, from 1.
  std::int64_t epoch() const { return std::ssize(result_.epochs) + 1; }
  std::int64_t epoch_begin() const { return (epoch() - 1) * steps_per_epoch(); }
  std::int64_t epoch_end() const { return std::min(steps_, epoch() * steps_per_epoch()); }
  bool on_cpu() const { return device_.kind() == DeviceKind::cpu; }
  bool steps_are_eager() const { return trainer_.training_steps().eager_left() > 0; }

  /// The checkpoint was written before these actions.
  void repeat_actions_of_resumed_step() {
    lines_.write_resumed(step_, epoch());
    do_what_is_due();
  }

  void do_what_is_due() {
    act_if_due(true);
    if (hooks_.outer != nullptr && hooks_.outer->is_due(step_)) exchange_with_groups();
    act_if_due(false);
  }

  void act_if_due(bool before_exchange) {
    for (const Periodic& each : after_windows_) {
      const bool is_due = step_ % each.every == 0 || (each.also_at_end && step_ == steps_);
      const bool is_first = each.before_exchange && step_ < steps_;
      if (is_due && is_first == before_exchange) each.act();
    }
  }

  /// A signal while the group waits for others ends the run.
  void exchange_with_groups() {
    const std::optional<int> signal = hooks_.outer->exchange(step_, checkpoints_.step_before_newest());
    for (const OuterExchange& exchange : hooks_.outer->take_exchanges()) {
      if (report_ != nullptr) report_->exchange(exchange);
    }
    if (step_ == steps_) result_.outer = hooks_.outer->totals();
    if (!signal) {
      // The last one was written before the wait for other groups, and lacks what came of it.
      if (step_ == steps_ && checkpoints_.enabled()) write_checkpoint();
      return;
    }
    end_after_checkpoint(*signal);
  }

  /// Between steps, before the end of the epoch is noted.
  [[noreturn]] void end_after_checkpoint(int signal) {
    checkpoints_.ask();
    if (checkpoints_.is_due(step_)) write_checkpoint();
    end_run(signal);
  }

  std::int64_t end_of_window() const {
    std::int64_t end = hooks_.outer != nullptr ? hooks_.outer->next_stop(step_) : steps_;
    for (const Periodic& each : after_windows_) end = std::min(end, (step_ / each.every + 1) * each.every);
    const bool is_first = times_.windows() == 0;
    return is_first ? std::min<std::int64_t>(end, step_ + StepGraphOptions{}.eager_steps) : end;
  }

  void run_window(std::int64_t end) {
    const std::int64_t begin = step_;
    const bool is_first = times_.windows() == 0;
    times_.begin(step_);
    lines_.start_clock(step_);
    while (step_ < end) {
      run_steps(next_stop(end) - step_);
      if (checkpoints_.is_due(step_)) write_checkpoint();
      if (end_signal_) end_run(*end_signal_);
      if (!has_started_) note_start();
    }
    times_.end();
    lines_.write(step_);
    times_.add_window(step_ - begin);
    guard_.check_finite();
    if (is_first && hooks_.after_first_steps) hooks_.after_first_steps();
  }

  /// Where the host acts next, at most `end`.
  std::int64_t next_stop(std::int64_t end) const {
    if (!has_started_ || steps_are_eager()) return step_ + 1;
    std::int64_t stop = std::min({end, step_ + pace_.left(), lines_.next_stop(step_), checkpoints_.next_stop(step_)});
    const std::int64_t last_step = epoch_end() - 1;  // it begins after the mark of the training sums
    if (step_ < last_step) stop = std::min(stop, last_step);
    if (const auto& fails = options_.fail_at; fails && step_ < fails->step) stop = std::min(stop, fails->step);
    return stop;
  }

  void run_steps(std::int64_t count) {
    if (const auto& fails = options_.fail_at; fails && step_ == fails->step && world_.rank() == fails->rank) {
      fail("step {} fails because --fail-at says so", step_);
    }
    if (step_ + 1 == epoch_end()) mark_last_step();
    if (steps_are_eager()) {
      run_eager_step();
    } else {
      trainer_.run(static_cast<std::uint64_t>(count));
    }
    step_ += count;
    lines_.queued(step_, epoch());
    end_piece(count);
  }

  void mark_last_step() {
    const Queueing queueing(device_);
    trainer_.metrics().mark_training();
    last_step_is_marked_ = true;
  }

  /// The shortest of the eager steps decides about graphs: the others may include the choice of kernels.
  void run_eager_step() {
    const Clock::time_point start = Clock::now();
    trainer_.run(1);
    device_.synchronize();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    shortest_step_ = std::min(shortest_step_, seconds);
    if (steps_are_eager()) return;
    const double step_seconds = world_.max(shortest_step_);
    trainer_.prepare_graph(step_seconds < kLongStepSeconds);
    lines_.choose_norms(step_seconds);
  }

  /// After each piece of StepPace the ranks agree, and the lines that the device has passed are written. On CPUs, the
  /// line of --log-every N appears as soon as its step has ended.
  void end_piece(std::int64_t steps) {
    const Clocked clocked(times_.agreeing_seconds());
    if (!pace_.queued(steps)) {
      if (on_cpu() && options_.log_every) lines_.write(step_);
      return;
    }
    agree_on_requests();
    const std::int64_t previous_end = std::exchange(piece_end_, step_);
    lines_.write(on_cpu() ? step_ : previous_end);  // a GPU still has this piece in its queue
  }

  /// The clock of rank 0 decides about checkpoints by time.
  void agree_on_requests() {
    const bool is_due = world_.rank() == 0 && checkpoints_.is_due_by_time();
    const Request agreed = agreed_request(is_due);
    if (checkpoints_.enabled()) checkpoints_.poll();
    if (agreed.end_signal) end_signal_ = agreed.end_signal;
    if (!agreed.checkpoint) return;
    checkpoints_.ask();
    if (checkpoints_.enabled() || end_signal_) return;
    if (world_.rank() == 0) spdlog::warn("SIGUSR1 asks for a checkpoint, and there is no --checkpoint");
    hooks_.signals->checkpoint_done();
  }

  Request agreed_request(bool is_due) {
    std::optional<Clocked> clocked;
    if (trainer_.has_sums_on_their_way()) clocked.emplace(times_.behind_sums_seconds());
    const Request agreed = agree(request_of_rank(hooks_.signals, is_due), world_, [this] { device_.progress(); });
    pace_.next_piece();
    return agreed;
  }

  void write_checkpoint() {
    const Watch::Phase phase(device_.watch(), "checkpoint");
    device_.synchronize();
    lines_.write(step_);
    guard_.check_finite();
    checkpoints_.wait_for_previous();
    if (hooks_.signals != nullptr) hooks_.signals->checkpoint_done();
    checkpoints_.start({step_, result_.epochs, epoch_sums_, {}, lines_.logged_before(step_)});
    lines_.start_clock(step_);
  }

  void wait_for_checkpoint() {
    const Watch::Phase phase(device_.watch(), "checkpoint");
    checkpoints_.wait();
  }

  /// After the first step of this process.
  void note_start() {
    has_started_ = true;
    result_.startup_seconds = world_.max(seconds_since_process_start());
    times_.drop_readings();
  }

  void check_replicas() { guard_.check_replicas(step_); }

  void evaluate_within_epoch() {
    if (step_ == epoch_end()) return;
    const MetricSums test = trainer_.evaluate(options_.eval_samples);
    if (report_ != nullptr) report_->evaluation(step_, test.mean_loss(), test.accuracy());
    guard_.check_evaluation(step_, test);
  }

  void sample_texts() {
    const std::vector<SampledText> samples = hooks_.sample_texts();
    if (report_ != nullptr) report_->samples(step_, samples);
    if (step_ == steps_) return;
    if (const std::optional<int> signal = agreed_end_signal(world_)) end_after_checkpoint(*signal);
  }

  void finish_epoch() {
    EpochResult result;
    result.epoch = epoch();
    result.step = step_;
    if (std::exchange(last_step_is_marked_, false)) result.last_loss = trainer_.since_mark().mean_loss();
    const MetricSums train = std::exchange(epoch_sums_, {}) + trainer_.take_training();
    lines_.end_epoch();
    const MetricSums test = trainer_.evaluate(options_.eval_samples);
    result.train_loss = train.mean_loss();
    result.train_accuracy = train.accuracy();
    result.test_loss = test.mean_loss();
    result.test_accuracy = test.accuracy();
    result.samples_per_second = times_.rate_since(std::exchange(first_window_of_epoch_, times_.windows()));
    result_.epochs.push_back(result);
    if (report_ != nullptr) report_->epoch(result);
    guard_.check_evaluation(step_, test);
  }

  void finish_training() {
    result_.checkpoints = checkpoints_.totals();
    result_.train_seconds = times_.seconds();
    result_.nonfinite_steps = guard_.left_out();
    result_.parameter_hash = trainer_.parameter_hash();
    if (trainer_.replicas_agree()) {
      check_same_on_all_ranks(world_, result_.parameter_hash, "the parameters after training");
    }
    if (options_.trained) options_.trained();
  }

  [[noreturn]] void end_run(int end_signal) {
    device_.synchronize();
    lines_.write(step_);
    if (checkpoints_.enabled()) wait_for_checkpoint();
    const std::string signal = signal_name(end_signal);
    const std::string& checkpoint = checkpoints_.newest();
    if (report_ != nullptr) report_->interrupted(step_, signal, checkpoint);
    if (checkpoint.empty()) {
      throw EndedBySignal(fmt::format("{}: ended after step {}, without a checkpoint", signal, step_),
                          128 + end_signal);
    }
    throw EndedBySignal(
        fmt::format("{}: ended after step {}; --resume auto goes on from {}", signal, step_, checkpoint),
        kExitResumable);
  }

  Trainer& trainer_;
  const World& world_;
  Device& device_;
  const RunOptions& options_;
  Report* report_;
  const RunHooks hooks_;
  const std::int64_t steps_;  ///< All steps of the run.
  std::int64_t step_;         ///< Steps that are queued.
  RunGuard guard_;
  WindowTimes times_;
  RunCheckpoints checkpoints_;
  RunLines lines_;
  StepPace pace_;
  std::int64_t piece_end_;  ///< The last step of the newest complete piece (StepPace).
  std::vector<Periodic> after_windows_;
  bool has_started_ = false;                                        ///< This process has run a step.
  double shortest_step_ = std::numeric_limits<double>::infinity();  ///< Seconds, of eager steps.
  MetricSums epoch_sums_;                                           ///< See RunProgress.
  std::size_t first_window_of_epoch_ = 0;
  bool last_step_is_marked_ = false;  ///< This process has run the last step of the epoch.
  std::optional<int> end_signal_;
  RunResult result_;
};

}  // namespace

RunResult run_training(Trainer& trainer, const World& world, const RunOptions& options, Report* report,
                       const RunHooks& hooks) {
  return TrainingRun(trainer, world, options, report, hooks).run();
}

}  // namespace ddptrain
