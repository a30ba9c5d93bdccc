#include "runtime/train/run/window_times.h"

#include <utility>

#include "runtime/train/measure/gather_sensors.h"

namespace ddptrain {

WindowTimes::WindowTimes(const Trainer& trainer, const World& world, SensorSampler* sensors)
    : trainer_(trainer), world_(world), device_(trainer.device()), sensors_(sensors) {}

void WindowTimes::begin(std::int64_t step) {
  is_first_ = meter_.windows() == 0;
  metered_step_ = step;
  drop_readings();
  window_readings_ = {};
  begin_ = Clock::now();
  in_replica_before_ = trainer_.seconds_in_replica();
  for_replicas_before_ = trainer_.seconds_waited();
  agreeing_seconds_ = behind_sums_seconds_ = 0.0;
}

void WindowTimes::end() {
  device_.synchronize();
  const double my_seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  seconds_ = world_.max(my_seconds);
  if (!is_first_) add_waits(my_seconds);
  note_readings();
  clocks_.push_back(window_readings_.sm_mhz.readings > 0 ? window_readings_.sm_mhz.mean() : 0.0);
  trainer_.arena().communicator().check_health();
}

void WindowTimes::add_waits(double my_seconds) {
  ReplicaSeconds waited = trainer_.seconds_in_replica() - in_replica_before_;
  // A stage that has finished its part of the step waits here for the slowest stage.
  const bool waits_here = waited.stages > 0.0 && device_.kind() == DeviceKind::cpu;
  if (waits_here) waited.stages += agreeing_seconds_ + seconds_ - my_seconds;
  in_replica_ += waited;
  for_replicas_ += trainer_.seconds_waited() - for_replicas_before_;
  if (!waits_here) for_replicas_ += behind_sums_seconds_;
  counted_seconds_ += seconds_;
}

void WindowTimes::add_window(std::int64_t steps) {
  const std::int64_t rest = steps - std::exchange(metered_steps_, 0);
  const double rest_seconds = seconds_ - std::exchange(metered_seconds_, 0.0);
  if (rest == 0 || rest_seconds <= 0.0) return;
  meter_.add(static_cast<std::uint64_t>(rest * trainer_.sampler().samples_per_step()), rest_seconds);
}

void WindowTimes::add_line(const StepResult& line) {
  if (is_first_) return;
  const std::int64_t steps = line.step - std::exchange(metered_step_, line.step);
  const double seconds = static_cast<double>(steps) * *line.step_seconds;
  metered_steps_ += steps;
  metered_seconds_ += seconds;
  meter_.add(static_cast<std::uint64_t>(steps * trainer_.sampler().samples_per_step()), seconds);
}

void WindowTimes::drop_readings() {
  if (sensors_ != nullptr) sensors_->take();
}

void WindowTimes::note_readings() {
  SensorWindow newest;
  if (sensors_ != nullptr) newest = sensors_->take();
  readings_.add(newest);
  window_readings_.add(newest);
  logged_readings_.add(newest);
}

SensorWindow WindowTimes::take_logged_readings() {
  note_readings();
  return std::exchange(logged_readings_, {});
}

/// Mean over the ranks, as a share of the time of steps. Empty if it is 0.
std::optional<double> WindowTimes::share_of(double seconds) const {
  const double mean = world_.sum(seconds) / world_.size();
  if (mean == 0.0) return std::nullopt;
  return mean / counted_seconds_;
}

void WindowTimes::report(RunResult& result) const {
  result.rate = meter_.rate();
  result.waits_for_stages = share_of(in_replica_.stages);
  result.in_split_layers = share_of(in_replica_.layers);
  result.waits_for_replicas = share_of(for_replicas_);
  result.gpus = gather_sensors(world_, readings_);
  result.clocks = gather_clocks(world_, clocks_);
}

}  // namespace ddptrain
