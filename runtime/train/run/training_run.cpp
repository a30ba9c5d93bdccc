#include "runtime/train/run/training_run.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/core/clocked.h"
#include "runtime/core/error.h"
#include "runtime/core/files/atomic_file.h"
#include "runtime/core/process/host.h"
#include "runtime/train/measure/sensor_report.h"
#include "runtime/train/measure/step_window.h"
#include "runtime/train/measure/trace.h"
#include "runtime/train/replica/replica_check.h"
#include "runtime/train/run/meter.h"
#include "runtime/train/run/progress_log.h"
#include "runtime/train/run/run_guard.h"
#include "runtime/train/run/step_lines.h"
#include "runtime/train/run/step_pace.h"

namespace ddptrain {
namespace {

constexpr std::uint32_t kTracedSteps = 3;
constexpr double kLongWait = 0.1;  // seconds of waiting for the previous checkpoint that are not reported

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class TrainingRun {
 public:
  TrainingRun(Trainer& trainer, const World& world, const RunOptions& options, Report* report, const RunHooks& hooks)
      : trainer_(trainer),
        world_(world),
        device_(trainer.device()),
        options_(options),
        report_(report),
        hooks_(hooks),
        guard_(trainer, world),
        steps_(total_steps(options, trainer.sampler().steps_per_epoch())) {
    if (hooks.checkpoints != nullptr) result_.checkpoints.emplace();
    if (hooks.resumed != nullptr) go_on_from(*hooks.resumed);
    log_steps();
    pace_.emplace(world, device_, lines_ ? lines_->most_queued() / 2 : std::numeric_limits<std::int64_t>::max());
    if (report != nullptr) log_progress();
  }

  RunResult run() {
    do run_epoch();
    while (step_ < steps_);
    if (hooks_.checkpoints != nullptr) wait_for_checkpoint();
    result_.train_seconds = meter_.seconds();
    result_.nonfinite_steps = guard_.left_out();
    result_.parameter_hash = trainer_.parameter_hash();
    if (trainer_.replicas_agree()) {
      check_same_on_all_ranks(world_, result_.parameter_hash, "the parameters after training");
    }
    if (options_.trained) options_.trained();
    if (meter_.windows() > 0) measure();  // else resumed after the last step: there is no step to measure
    result_.end_signal = end_signal_after_training();
    return std::move(result_);
  }

 private:
  /// An action after every `every` steps. 0: never.
  struct Periodic {
    std::int64_t every;
    std::function<void()> act;
  };

  /// The signal that asks for the end, on whichever rank it arrived. 0: none. Collective.
  int end_signal_after_training() const {
    return static_cast<int>(world_.max(hooks_.signals != nullptr ? SignalRequests::end() : 0));
  }

  /// What does not train. A signal that asks for the end leaves out what has not begun.
  void measure() {
    sustain();
    if (!options_.trace.empty() && end_signal_after_training() == 0) {
      const std::string trace = chrome_trace(world_, trace_steps(trainer_, kTracedSteps));
      world_.agree([&] {
        if (world_.rank() == 0) write_file(options_.trace, trace + '\n');
      });
    }
    if (options_.baseline && end_signal_after_training() == 0) {
      const double last_rate = result_.epochs.back().samples_per_second;
      const CalibrationLimit limit =
          calibration_limit(options_.calibration_seconds, result_.train_seconds, options_.min_seconds);
      result_.calibration = calibrate(trainer_, world_, last_rate, limit, hooks_.sensors);
    }
  }

  void log_progress() {
    const DistributedSampler& sampler = trainer_.sampler();
    const Model& model = trainer_.model();
    const double units_per_step = static_cast<double>(sampler.samples_per_step() * model.predictions_per_sample());
    progress_.emplace(device_.watch(),
                      ProgressLog::Plan{.first = step_,
                                        .steps = steps_,
                                        .steps_per_epoch = sampler.steps_per_epoch(),
                                        .epochs = total_epochs(options_, sampler.steps_per_epoch()),
                                        .units_per_step = units_per_step,
                                        .unit = model.sample_unit(),
                                        .line_per_logged_step = options_.log_every.value_or(0) > 0},
                      std::chrono::milliseconds(std::llround(1e3 * options_.progress_seconds)));
  }

  void log_steps() {
    const std::int64_t every = log_every(options_, steps_);
    if (every == 0) return;
    const StepLines::Norms norms = options_.log_every ? StepLines::Norms::all : StepLines::Norms::cheap;
    const MetricSums logged = hooks_.resumed != nullptr ? hooks_.resumed->logged_sums : MetricSums{};
    lines_.emplace(trainer_, world_, every, norms, step_, logged);
  }

  void go_on_from(const RunProgress& progress) {
    step_ = progress.step;
    last_checkpoint_step_ = progress.step;
    piece_end_ = progress.step;
    result_.epochs = progress.epochs;
    epoch_sums_ = progress.epoch_sums;
    epochs_done_ = static_cast<std::int64_t>(progress.epochs.size());
  }

  void run_epoch() {
    const std::int64_t steps_per_epoch = trainer_.sampler().steps_per_epoch();
    const std::int64_t begin = epochs_done_ * steps_per_epoch;
    const std::int64_t end = std::min(steps_, begin + steps_per_epoch);
    last_step_of_epoch_ = end - 1;
    double last_loss = std::numeric_limits<double>::quiet_NaN();
    const std::size_t first_window = meter_.windows();
    if (step_ > begin) {  // resumed: the checkpoint was written before these actions
      if (lines_ && step_ % lines_->every() == 0) write_line(lines_->resumed_line(step_, epochs_done_ + 1));
      do_what_is_due();
    }
    while (step_ < end) {
      run_window(end_of_window(end) - step_);
      if (step_ == end) last_loss = trainer_.since_mark().mean_loss();
      do_what_is_due();
    }
    const MetricSums train = std::exchange(epoch_sums_, {}) + trainer_.take_training();
    if (lines_) lines_->end_epoch();
    const MetricSums test = trainer_.evaluate(options_.eval_samples);
    result_.epochs.push_back({++epochs_done_, step_, train.mean_loss(), train.accuracy(), test.mean_loss(),
                              test.accuracy(), meter_.rate_since(first_window), last_loss});
    if (report_ != nullptr) report_->epoch(result_.epochs.back());
  }

  void do_what_is_due() {
    for (const Periodic& each : periodic_) {
      if (each.every > 0 && step_ % each.every == 0) each.act();
    }
  }

  /// Writes the logged steps up to `step`, which the device has passed.
  void write_lines(std::int64_t step) {
    if (!lines_) return;
    std::vector<StepResult> results = lines_->take(step);
    if (results.empty()) return;
    std::vector<SensorWindow> gpus;
    if (device_.kind() != DeviceKind::cpu) {
      note_sensors();
      gpus = gather_sensors(world_, std::exchange(logged_sensors_, {}));
    }
    bool finite = true;
    for (StepResult& result : results) {
      finite = finite && std::isfinite(result.loss);
      result.gpus = gpus;
      if (options_.log_every && meter_.windows() > 0) add_to_meter(result);
      write_line(result);
    }
    if (!finite) guard_.check_finite();
  }

  /// With --log-every N, windows of the meter end at lines.
  void add_to_meter(const StepResult& line) {
    const std::int64_t steps = line.step - std::exchange(metered_step_, line.step);
    const double seconds = static_cast<double>(steps) * *line.step_seconds;
    metered_steps_ += steps;
    metered_seconds_ += seconds;
    meter_.add(static_cast<std::uint64_t>(steps * trainer_.sampler().samples_per_step()), seconds);
  }

  void write_line(const StepResult& result) {
    if (report_ == nullptr) return;
    report_->step(result);
    progress_->logged(result.step, result.loss, result.step_seconds ? 1.0 / *result.step_seconds : 0.0);
  }

  void evaluate_within_epoch() {
    if (step_ > last_step_of_epoch_) return;
    const MetricSums test = trainer_.evaluate(options_.eval_samples);
    if (report_ != nullptr) report_->evaluation(step_, test.mean_loss(), test.accuracy());
  }

  /// The window ends when an action is due. The first window has the eager steps.
  std::int64_t end_of_window(std::int64_t epoch_end) const {
    std::int64_t end = epoch_end;
    if (meter_.windows() == 0) end = std::min<std::int64_t>(end, step_ + StepGraphOptions{}.eager_steps);
    for (const Periodic& each : periodic_) {
      if (each.every > 0) end = std::min(end, (step_ / each.every + 1) * each.every);
    }
    return end;
  }

  void run_window(std::int64_t steps) {
    const bool first = meter_.windows() == 0;
    metered_step_ = step_;
    time_window(steps, [&] {
      if (lines_) lines_->start_clock(step_);
      if (first) run_first_step();
      run_steps(first ? steps - 1 : steps);
    });
    guard_.check_finite();
    if (first && hooks_.under_way) hooks_.under_way();
  }

  void run_first_step() {
    run_steps(1);
    result_.startup_seconds = world_.max(seconds_since_process_start());
    if (hooks_.sensors != nullptr) hooks_.sensors->take();
  }

  /// Times a window of `steps` steps, which `run` queues. Waits for other ranks in the first window do not count.
  void time_window(std::int64_t steps, const std::function<void()>& run) {
    if (hooks_.sensors != nullptr) hooks_.sensors->take();  // drops earlier readings
    window_sensors_ = {};
    const Clock::time_point start = Clock::now();
    const ReplicaSeconds before = trainer_.seconds_in_replica();
    const double waited_before = trainer_.seconds_waited();
    agreeing_seconds_ = 0.0;
    run();
    device_.synchronize();
    const double mine = seconds_since(start);
    const double seconds = world_.max(mine);
    note_sensors();
    clocks_.push_back(window_sensors_.sm_mhz.readings > 0 ? window_sensors_.sm_mhz.mean() : 0.0);
    trainer_.arena().communicator().check_health();
    const bool first = meter_.windows() == 0;
    write_lines(step_);
    add_rest_to_meter(steps, seconds);
    if (first) return;
    ReplicaSeconds waited = trainer_.seconds_in_replica() - before;
    // A stage that has finished its part of the step waits here for the slowest stage.
    if (waited.stages > 0.0 && device_.kind() == DeviceKind::cpu) waited.stages += agreeing_seconds_ + seconds - mine;
    in_replica_ += waited;
    for_replicas_ += trainer_.seconds_waited() - waited_before;
    noted_seconds_ += seconds;
  }

  /// Adds a window of `steps` steps to the meter, but for what its lines have added.
  void add_rest_to_meter(std::int64_t steps, double seconds) {
    const std::int64_t rest = steps - std::exchange(metered_steps_, 0);
    const double rest_seconds = seconds - std::exchange(metered_seconds_, 0.0);
    if (rest == 0 || rest_seconds <= 0.0) return;
    meter_.add(static_cast<std::uint64_t>(rest * trainer_.sampler().samples_per_step()), rest_seconds);
  }

  /// Mean over the ranks, as a share of the time of steps. Empty if it is 0.
  std::optional<double> share_of(double seconds) const {
    const double mean = world_.sum(seconds) / world_.size();
    if (mean == 0.0) return std::nullopt;
    return mean / noted_seconds_;
  }

  void note_sensors() {
    SensorWindow shown;
    if (hooks_.sensors != nullptr) shown = hooks_.sensors->take();
    sensors_.add(shown);
    window_sensors_.add(shown);
    logged_sensors_.add(shown);
  }

  /// Runs windows of about a second until --min-seconds are measured.
  void sustain() {
    const Watch::Phase phase(device_.watch(), "training");
    const auto samples = static_cast<double>(trainer_.sampler().samples_per_step());
    while (world_.max(options_.min_seconds - meter_.rate().seconds) > 0.0 && end_signal_after_training() == 0) {
      const double step_seconds = samples / meter_.rate_since(meter_.windows() - 1);
      const auto steps =
          static_cast<std::int64_t>(world_.max(static_cast<double>(steps_per_window(1.0, step_seconds))));
      time_window(steps, [&] { trainer_.run(static_cast<std::uint64_t>(steps)); });
    }
    result_.rate = meter_.rate();
    result_.waits_for_stages = share_of(in_replica_.stages);
    result_.in_split_layers = share_of(in_replica_.layers);
    result_.waits_for_replicas = share_of(for_replicas_);
    result_.gpus = gather_sensors(world_, sensors_);
    result_.clocks = gather_clocks(world_, clocks_);
  }

  void run_steps(std::int64_t count) {
    for (const std::int64_t end = step_ + count; step_ < end;) {
      if (step_ == options_.fail_step && world_.rank() == options_.fail_rank) {
        fail("step {} fails because --fail-at says so", step_);
      }
      if (step_ == last_step_of_epoch_) trainer_.metrics().mark_training();
      const std::int64_t piece = next_piece(end);
      run_piece(piece);
      step_ += piece;
      if (lines_) lines_->queued(step_, epochs_done_ + 1);
      end_piece(piece);
      if (checkpoint_is_due()) write_checkpoint();
      if (end_signal_ != 0) end_run();
    }
  }

  bool steps_are_eager() const { return trainer_.training_steps().eager_left() > 0; }

  /// The shortest of the eager steps decides about graphs: the others may include the choice of kernels.
  void run_piece(std::int64_t steps) {
    const bool eager = steps_are_eager();
    const Clock::time_point start = Clock::now();
    trainer_.run(static_cast<std::uint64_t>(steps));
    if (!eager) return;
    device_.synchronize();
    shortest_step_ = std::min(shortest_step_, seconds_since(start));
    if (steps_are_eager()) return;
    const double step_seconds = world_.max(shortest_step_);
    trainer_.prepare_graph(step_seconds < kLongStepSeconds);
    if (lines_) lines_->choose_norms(step_seconds);
  }

  void end_piece(std::int64_t steps) {
    const Clocked clocked(agreeing_seconds_);
    if (!pace_->queued(steps)) return write_line_at_once();
    agree_on_requests();
    const std::int64_t before = std::exchange(piece_end_, step_);
    const std::int64_t ended =
        device_.kind() == DeviceKind::cpu ? step_ : before;  // a GPU still has this piece in its queue
    write_lines(ended);
  }

  /// On CPUs, the line of --log-every N appears as soon as its step has ended.
  void write_line_at_once() {
    if (device_.kind() == DeviceKind::cpu && options_.log_every) write_lines(step_);
  }

  std::int64_t next_piece(std::int64_t end) const {
    if (steps_are_eager()) return 1;
    std::int64_t piece = std::min(end - step_, pace_->left());
    if (lines_) piece = std::min(piece, lines_->next_stop(step_) - step_);
    if (step_ < last_step_of_epoch_) piece = std::min(piece, last_step_of_epoch_ - step_);
    if (step_ < options_.fail_step) piece = std::min(piece, options_.fail_step - step_);
    if (const std::int64_t every = checkpoint_every(); every > 0) piece = std::min(piece, every - step_ % every);
    return piece;
  }

  std::int64_t checkpoint_every() const {
    return hooks_.checkpoints != nullptr ? hooks_.checkpoints->options().every_steps : 0;
  }

  /// All ranks agree on requests of signals, on whichever rank they arrived, and on the time of the next checkpoint.
  void agree_on_requests() {
    const SignalRequests* signals = hooks_.signals;
    const bool by_time = hooks_.checkpoints != nullptr && world_.rank() == 0 &&
                         hooks_.checkpoints->options().every_seconds > 0.0 &&
                         seconds_since(last_checkpoint_) >= hooks_.checkpoints->options().every_seconds;
    double request = by_time || (signals != nullptr && signals->checkpoint()) ? 1.0 : 0.0;
    if (signals != nullptr && SignalRequests::end() != 0) request = 1.0 + SignalRequests::end();
    request = world_.max(request, [this] { device_.progress(); });
    pace_->next_piece();
    if (hooks_.checkpoints != nullptr) note(hooks_.checkpoints->poll());
    if (request > 1.0) end_signal_ = static_cast<int>(request - 1.0);
    checkpoint_asked_ = checkpoint_asked_ || request > 0.0;
    if (request > 0.0 && hooks_.checkpoints == nullptr && end_signal_ == 0) {
      if (world_.rank() == 0) spdlog::warn("SIGUSR1 asks for a checkpoint, and there is no --checkpoint");
      hooks_.signals->checkpoint_done();
    }
  }

  bool checkpoint_is_due() const {
    if (hooks_.checkpoints == nullptr || step_ == last_checkpoint_step_) return false;
    const std::int64_t every = checkpoint_every();
    return checkpoint_asked_ || step_ == steps_ || (every > 0 && step_ % every == 0);
  }

  void wait_for_checkpoint() {
    const Watch::Phase phase(device_.watch(), "checkpoint");
    note(hooks_.checkpoints->wait());
  }

  void write_checkpoint() {
    const Watch::Phase phase(device_.watch(), "checkpoint");
    CheckpointWriter& writer = *hooks_.checkpoints;
    device_.synchronize();
    write_lines(step_);
    guard_.check_finite();
    if (writer.busy()) {
      const Clock::time_point start = Clock::now();
      note(writer.wait());
      if (const double waited = seconds_since(start); report_ != nullptr && waited >= kLongWait) {
        spdlog::warn("Training waited {:.2f} s for the checkpoint before: they are due faster than they are written",
                     waited);
      }
    }
    checkpoint_asked_ = false;
    last_checkpoint_ = Clock::now();
    last_checkpoint_step_ = step_;
    if (hooks_.signals != nullptr) hooks_.signals->checkpoint_done();
    note(writer.start({step_, result_.epochs, epoch_sums_, {}, lines_ ? lines_->logged_before(step_) : MetricSums{}}));
    if (lines_) lines_->start_clock(step_);
  }

  void note(const std::optional<WrittenCheckpoint>& checkpoint) {
    if (!checkpoint) return;
    result_.checkpoints->add(*checkpoint);
    if (report_ != nullptr) report_->checkpoint(*checkpoint);
    if (checkpoint->error.empty()) {
      newest_checkpoint_ = checkpoint->path;
      return;
    }
    const std::string message = fmt::format("the checkpoint of step {} was not written: {}. Those before it are intact",
                                            checkpoint->step, checkpoint->error);
    if (hooks_.checkpoints->options().stop_on_error) {
      throw Error(message + "; --on-checkpoint-error continue trains on without it", true);
    }
    if (world_.rank() != 0) return;
    spdlog::error("{}; {}", message, checkpoint->step == steps_ ? "the run ends without it" : "training goes on");
  }

  [[noreturn]] void end_run() {
    device_.synchronize();
    write_lines(step_);
    if (hooks_.checkpoints != nullptr) wait_for_checkpoint();
    const std::string signal = signal_name(end_signal_);
    if (report_ != nullptr) report_->interrupted(step_, signal, newest_checkpoint_);
    if (newest_checkpoint_.empty()) {
      throw EndedBySignal(fmt::format("{}: ended after step {}, without a checkpoint", signal, step_),
                          128 + end_signal_);
    }
    throw EndedBySignal(
        fmt::format("{}: ended after step {}; --resume auto goes on from {}", signal, step_, newest_checkpoint_),
        kExitResumable);
  }

  Trainer& trainer_;
  const World& world_;
  Device& device_;
  const RunOptions& options_;
  Report* report_;
  const RunHooks hooks_;
  RunGuard guard_;
  const std::int64_t steps_;
  std::int64_t step_ = 0;
  double shortest_step_ = std::numeric_limits<double>::infinity();  ///< Seconds, of eager steps.
  std::int64_t epochs_done_ = 0;
  std::int64_t last_step_of_epoch_ = 0;
  std::int64_t metered_step_ = 0;   ///< The last step in the meter.
  std::int64_t metered_steps_ = 0;  ///< Steps of the current window that its lines have added to the meter.
  double metered_seconds_ = 0.0;    ///< Their time.
  double agreeing_seconds_ = 0.0;   ///< Time of this rank in the current window for agreements between ranks.
  // Times of this rank in all windows but the first:
  ReplicaSeconds in_replica_;
  double for_replicas_ = 0.0;   ///< Waits for gradients and weights.
  double noted_seconds_ = 0.0;  ///< The length of these windows.
  const std::vector<Periodic> periodic_ = {{options_.verify_every, [this] { guard_.check_replicas(step_); }},
                                           {options_.eval_every, [this] { evaluate_within_epoch(); }}};
  MetricSums epoch_sums_;           ///< See RunProgress.
  std::optional<StepLines> lines_;  ///< Empty: no step is logged.
  std::optional<StepPace> pace_;
  std::int64_t piece_end_ = 0;   ///< The last step of the newest piece (StepPace) that is queued.
  SensorWindow sensors_;         ///< Readings in all windows.
  SensorWindow window_sensors_;  ///< Readings in the current window.
  SensorWindow logged_sensors_;  ///< Readings since the last log line.
  std::vector<double> clocks_;   ///< Mean MHz of each window. 0: unknown.
  bool checkpoint_asked_ = false;
  int end_signal_ = 0;
  Clock::time_point last_checkpoint_ = Clock::now();
  std::int64_t last_checkpoint_step_ = 0;
  std::string newest_checkpoint_;  ///< The newest complete checkpoint of this run.
  Meter meter_;
  RunResult result_;
  std::optional<ProgressLog> progress_;
};

}  // namespace

RunResult run_training(Trainer& trainer, const World& world, const RunOptions& options, Report* report,
                       const RunHooks& hooks) {
  return TrainingRun(trainer, world, options, report, hooks).run();
}

}  // namespace ddptrain
