#include "runtime/train/training_run.h"

#include <spdlog/spdlog.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>

#include "runtime/core/error.h"
#include "runtime/train/meter.h"
#include "runtime/train/run_guard.h"
#include "runtime/train/trace.h"

namespace ddptrain {
namespace {

constexpr std::uint32_t kTracedSteps = 3;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

MetricSums operator+(const MetricSums& a, const MetricSums& b) {
  return {a.loss + b.loss, a.correct + b.correct, a.samples + b.samples};
}

double mean_loss(const MetricSums& sums) { return sums.loss / static_cast<double>(sums.samples); }
double accuracy(const MetricSums& sums) {
  return static_cast<double>(sums.correct) / static_cast<double>(sums.samples);
}

class TrainingRun {
 public:
  TrainingRun(Trainer& trainer, const World& world, Device& device, Communicator& communicator,
              const RunOptions& options, Report* report)
      : trainer_(trainer),
        world_(world),
        device_(device),
        communicator_(communicator),
        options_(options),
        report_(report),
        guard_(trainer, world, device),
        steps_(total_steps(options, trainer.sampler().steps_per_epoch())) {}

  RunResult run() {
    while (step_ < steps_) run_epoch();
    result_.rate = meter_.rate();
    result_.train_seconds = meter_.seconds();
    result_.nonfinite_steps = guard_.left_out();
    result_.parameter_hash = trainer_.state().parameter_hash();
    if (trainer_.communicates()) {
      check_same_on_all_ranks(world_, result_.parameter_hash, "the parameters after training");
    }
    if (options_.trained) options_.trained();
    if (!options_.trace.empty()) {
      const auto ranks = gather_trace(world_, trainer_.trace(kTracedSteps));
      world_.agree([&] {
        if (world_.rank() == 0) write_trace(options_.trace, ranks);
      });
    }
    if (options_.baseline) {
      const double last_rate = result_.epochs.back().samples_per_second;
      result_.calibration = calibrate(trainer_, world_, device_, last_rate);
    }
    return std::move(result_);
  }

 private:
  void run_epoch() {
    const std::int64_t end = std::min(steps_, step_ + trainer_.sampler().steps_per_epoch());
    const std::size_t first_window = meter_.windows();
    MetricSums train;
    while (step_ < end) {
      run_window(next_boundary(end) - step_);
      if (is_every(options_.verify_every)) guard_.check_replicas(step_);
      if (is_every(options_.samples.every)) write_sample();
      if (step_ == end) break;
      if (is_every(options_.eval_every)) evaluate_within_epoch();
      if (!is_every(options_.log_every)) continue;
      const MetricSums sums = trainer_.take_training_sums();
      log_window(sums);
      train = train + sums;
    }
    train = train + trainer_.take_training_sums();
    const MetricSums test = trainer_.evaluate(options_.eval_samples);
    result_.epochs.push_back({static_cast<std::int64_t>(result_.epochs.size()) + 1, step_, mean_loss(train),
                              accuracy(train), mean_loss(test), accuracy(test), meter_.rate_since(first_window)});
    if (report_ != nullptr) report_->epoch(result_.epochs.back());
  }

  bool is_every(std::int64_t steps) const { return steps > 0 && step_ % steps == 0; }

  void log_window(const MetricSums& sums) const {
    if (report_ == nullptr) return;
    const Model& model = trainer_.model();
    const double rate = meter_.rate_since(meter_.windows() - 1) * static_cast<double>(model.predictions_per_sample());
    spdlog::info("step {}  loss {:.4f}  {:.0f} {}/s", step_, mean_loss(sums), rate, model.unit());
  }

  void evaluate_within_epoch() {
    const MetricSums test = trainer_.evaluate(options_.eval_samples);
    if (report_ != nullptr) report_->evaluation(step_, mean_loss(test), accuracy(test));
  }

  void write_sample() {
    if (report_ != nullptr) report_->sample(step_, options_.samples.write());
    world_.quiet_barrier();
  }

  /// Where the window that starts now ends. The first one holds the eager steps.
  std::int64_t next_boundary(std::int64_t epoch_end) const {
    std::int64_t boundary = epoch_end;
    if (step_ == 0) return std::min<std::int64_t>(boundary, StepGraphOptions{}.eager_steps);
    for (const std::int64_t every :
         {options_.log_every, options_.eval_every, options_.verify_every, options_.samples.every}) {
      if (every > 0) boundary = std::min(boundary, (step_ / every + 1) * every);
    }
    return boundary;
  }

  void run_window(std::int64_t steps) {
    const bool first = step_ == 0;
    const Clock::time_point start = Clock::now();
    if (first) {
      run_steps(1);
      device_.synchronize();
      result_.startup_seconds = world_.max(seconds_since_process_start());
      --steps;
    }
    run_steps(steps);
    device_.synchronize();
    const double seconds = world_.max(seconds_since(start));
    communicator_.check_health();
    guard_.check_finite();
    const std::int64_t done = steps + (first ? 1 : 0);
    meter_.add(static_cast<std::uint64_t>(done * trainer_.sampler().samples_per_step()), seconds);
    if (first) trainer_.prepare_graph();
  }

  void run_steps(std::int64_t count) {
    const Clock::time_point start = Clock::now();
    const std::int64_t first = step_;
    for (const std::int64_t end = step_ + count; step_ < end;) {
      if (step_ == options_.fail_step && world_.rank() == options_.fail_rank) {
        fail("step {} fails because --fail-at says so", step_);
      }
      std::int64_t piece = options_.progress ? 1 : end - step_;
      if (step_ < options_.fail_step) piece = std::min(piece, options_.fail_step - step_);
      trainer_.run(static_cast<std::uint64_t>(piece));
      step_ += piece;
      if (options_.progress && report_ != nullptr) {
        const std::int64_t samples = (step_ - first) * trainer_.sampler().samples_per_step();
        report_->progress(step_, static_cast<double>(samples) / seconds_since(start));
      }
    }
  }

  Trainer& trainer_;
  const World& world_;
  Device& device_;
  Communicator& communicator_;
  const RunOptions& options_;
  Report* report_;
  RunGuard guard_;
  const std::int64_t steps_;
  std::int64_t step_ = 0;
  Meter meter_;
  RunResult result_;
};

}  // namespace

std::int64_t total_steps(const RunOptions& options, std::int64_t steps_per_epoch) {
  return options.steps > 0 ? options.steps : options.epochs * steps_per_epoch;
}

std::int64_t total_epochs(const RunOptions& options, std::int64_t steps_per_epoch) {
  return (total_steps(options, steps_per_epoch) + steps_per_epoch - 1) / steps_per_epoch;
}

RunResult run_training(Trainer& trainer, const World& world, Device& device, Communicator& communicator,
                       const RunOptions& options, Report* report) {
  return TrainingRun(trainer, world, device, communicator, options, report).run();
}

double seconds_since_process_start() {
  std::ifstream stat("/proc/self/stat");
  const std::string line{std::istreambuf_iterator<char>(stat), {}};
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;  // proc(5): field 22 is the start time
  double start_ticks = 0.0;
  fields >> start_ticks;
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  const double uptime = static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  return uptime - start_ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace ddptrain
