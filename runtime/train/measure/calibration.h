#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/device/device.h"
#include "runtime/device/sensors.h"
#include "runtime/train/measure/core_share.h"
#include "runtime/train/measure/step_pairs.h"
#include "runtime/train/measure/undelayed.h"
#include "runtime/train/replica/trainer.h"
#include "runtime/train/results/baseline.h"

namespace ddptrain {

/// The job that is timed: a Trainer's, or a simulated job of a test. Every method is collective.
class TimedJob {
 public:
  struct Window {
    std::vector<double> seconds;  ///< Per rank: from the common start until its device is done. 0: takes no part.
    double sm_mhz = 0.0;          ///< Mean clock of the slowest GPU that takes part; 0: unknown.
    std::vector<double> cpu_seconds = {};  ///< Per rank: CPU time in this window. Empty if GPUs compute.
    /// Per rank; none for a rank that takes no part. Empty if GPUs compute.
    std::vector<Pieces> pieces = {};
    Meeting meeting = Meeting::later;
  };

  virtual ~TimedJob() = default;
  /// Times `steps` steps. Before them it runs `lead` steps, which bring the device to the clock of this work.
  virtual Window time(TimedWork work, std::uint64_t steps, std::uint64_t lead) = 0;
  /// Times pairs of a step and a step without communication. The order of the two changes from pair to pair: A B B A.
  /// `lead` pairs of the same kind precede them and are not returned. Both numbers are even.
  virtual std::vector<StepPair> time_pairs(std::uint64_t /*pairs*/, std::uint64_t /*lead*/) { return {}; }
  /// Per rank: seconds from the beginning of a step to the end of its backward pass.
  virtual std::vector<double> time_compute(bool communicates) = 0;
  /// Part of the job's cores that other programs have taken since the beginning. Nothing: not known.
  virtual std::optional<CoreShare::Taken> taken() { return std::nullopt; }
  /// See CoreShare. Then waits for cores are the job's own, and count.
  virtual std::string crowd() { return ""; }
  virtual void progress(double /*seconds*/, double /*of_seconds*/) {}  ///< Called at the beginning of a round.
  virtual bool asked_to_end() { return false; }                        ///< This rank got a signal that ends the rounds.
  virtual double agreed(double mine) { return mine; }  ///< The same value on all ranks, which may round differently.
};

/// When the baseline measurement ends: no round begins later, but there is always one.
struct CalibrationLimit {
  CalibrationLimit(double of_all) : seconds(of_all), if_wide_seconds(of_all), is_fixed(true) {}
  CalibrationLimit(double of_most, double if_wide) : seconds(of_most), if_wide_seconds(if_wide), is_fixed(false) {}

  double seconds;
  /// If the efficiency's interval is wider than 5 points. A disturbed job ends earlier: once its ranks have had cores
  /// for `seconds`.
  double if_wide_seconds;
  bool is_fixed;  ///< The user asked for it.
};

/// GPU steps of this length bring a GPU to its power limit, and a clock that changes within seconds.
bool is_slow_step(double step_seconds);

/// `asked`. If that is 0, a quarter of the longer of the others, but 4 to 20 s; three times as long for a wide
/// interval. `slow_gpu`: steps are slow and GPUs compute. Then 20 s in place of that, also for a wide interval.
CalibrationLimit calibration_limit(double asked, double train_seconds, double min_seconds, bool slow_gpu = false);

/// Measures a job. `step_seconds` is about the time of a step. `gpu`: GPUs compute, so slow steps are timed in pairs.
/// Collective.
Calibration calibrate(TimedJob& job, double samples_per_step, double step_seconds, bool gpu,
                      const CalibrationLimit& limit);

/// Measures the job of `trainer`, whose parameters change. `samples_per_second` is the throughput of training; it
/// decides the length of windows, and is the result for one rank. `sensors` may be null. Collective.
Calibration calibrate(Trainer& trainer, const World& world, double samples_per_second, const CalibrationLimit& limit,
                      SensorSampler* sensors = nullptr);

}  // namespace ddptrain
