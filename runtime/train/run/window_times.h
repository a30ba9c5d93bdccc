#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/device/device.h"
#include "runtime/device/sensors.h"
#include "runtime/train/replica/trainer.h"
#include "runtime/train/results/run_result.h"
#include "runtime/train/results/steps.h"
#include "runtime/train/run/meter.h"

namespace ddptrain {

/// Times windows of steps: throughput, waits for other ranks, and the sensors of this rank's GPU. A window is the steps
/// between begin() and end(), which waits for the device. The first window has the work that happens only once, so it
/// does not count towards the shares of waits.
class WindowTimes {
 public:
  /// `sensors`: null without a GPU. References outlive the object.
  WindowTimes(const Trainer& trainer, const World& world, SensorSampler* sensors);

  /// Call it before the first step of a window is queued. `step`: the number of steps that are done.
  void begin(std::int64_t step);
  /// All steps of the window are queued. Waits for the device and times the window. Collective.
  void end();
  /// After end(): adds the window's `steps` steps to the throughput, without those that add_line() has added.
  void add_window(std::int64_t steps);
  /// Ends a stretch of the throughput at a logged step, so that --log-every N divides windows. The steps of the first
  /// window stay together.
  void add_line(const StepResult& line);

  /// Time of this rank in the current window for agreements between ranks. The caller adds to it.
  double& agreeing_seconds() { return agreeing_seconds_; }
  /// The part of it in which sums of gradients are on their way: the messages of the agreement come behind theirs. The
  /// caller adds to it, too.
  double& behind_sums_seconds() { return behind_sums_seconds_; }
  void drop_readings();  ///< Forgets the sensors' readings since the last call of a method of this object.
  /// The readings of this rank since the last call.
  SensorWindow take_logged_readings();

  std::size_t windows() const { return meter_.windows(); }
  double rate_since(std::size_t first_window) const { return meter_.rate_since(first_window); }
  Rate rate() const { return meter_.rate(); }
  double seconds() const { return meter_.seconds(); }  ///< The length of all windows.
  /// The same without the first one, which has work that happens only once, such as tuning.
  double repeated_seconds() const { return meter_.repeated_seconds(); }
  /// Sets the rate, the waits and the sensors of `result`. Collective.
  void report(RunResult& result) const;

 private:
  using Clock = std::chrono::steady_clock;

  void add_waits(double my_seconds);
  void note_readings();
  std::optional<double> share_of(double seconds) const;

  const Trainer& trainer_;
  const World& world_;
  Device& device_;
  SensorSampler* const sensors_;
  Meter meter_;

  // The current window:
  bool is_first_ = true;
  Clock::time_point begin_;
  double seconds_ = 0.0;  ///< On the slowest rank.
  ReplicaSeconds in_replica_before_;
  double for_replicas_before_ = 0.0;
  double agreeing_seconds_ = 0.0;
  double behind_sums_seconds_ = 0.0;
  std::int64_t metered_step_ = 0;   ///< The last step in the meter.
  std::int64_t metered_steps_ = 0;  ///< Steps that lines have added to the meter.
  double metered_seconds_ = 0.0;    ///< Their time.
  SensorWindow window_readings_;

  // All windows but the first, on this rank:
  ReplicaSeconds in_replica_;     ///< Waits within the replica.
  double for_replicas_ = 0.0;     ///< Waits for gradients and weights of other replicas.
  double counted_seconds_ = 0.0;  ///< The length of these windows.

  // All windows:
  SensorWindow readings_;
  SensorWindow logged_readings_;  ///< Since the last logged step.
  std::vector<double> clocks_;    ///< Mean MHz of each window. 0: unknown.
};

}  // namespace ddptrain
