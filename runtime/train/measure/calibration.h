#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/device/device.h"
#include "runtime/device/sensors.h"
#include "runtime/train/measure/estimate.h"
#include "runtime/train/step/trainer.h"

namespace ddptrain {

/// What is timed in turn.
enum class TimedWork : std::uint8_t {
  alone,          ///< The step without communication, on rank 0 with its whole device, while the others sleep.
  step,           ///< As in training.
  silent,         ///< The step without communication, on all ranks, with what their kernels leave to communication.
  communication,  ///< What a step sends, alone.
};

/// The job that is timed: that of a Trainer, or one made up by a test. Every method is collective.
class TimedJob {
 public:
  struct Window {
    std::vector<double> seconds;  ///< Of each rank, from a start in common until its device is done; 0: takes no part.
    double sm_mhz = 0.0;          ///< Mean clock of the slowest GPU that takes part; 0: unknown.
    std::vector<double> cpu_seconds = {};  ///< CPU time of each rank in this window; empty if GPUs compute.
  };

  virtual ~TimedJob() = default;
  /// Times `steps` steps, behind `lead` that are not timed, which bring the device to the clock of this work.
  virtual Window time(TimedWork work, std::uint64_t steps, std::uint64_t lead) = 0;
  /// Of each rank, seconds from the beginning of a step to the end of its backward pass, with or without communication.
  virtual std::vector<double> time_compute(bool communicates) = 0;
  virtual void progress(double /*seconds*/, double /*of_seconds*/) {}  ///< At the beginning of a round.
  virtual double agreed(double mine) { return mine; }  ///< One value for all ranks, which may round differently.
};

/// Means over the windows of one round, in seconds per step.
struct CalibrationRound {
  double alone = 0.0;
  double step = 0.0;               ///< Of the slowest rank.
  double communication = 0.0;      ///< Of the slowest rank.
  std::vector<double> silent;      ///< Of each rank.
  std::vector<double> silent_cpu;  ///< CPU time of each rank in it; empty if GPUs compute.
  double compute_beside = 0.0;     ///< To the end of backward, mean over the ranks, with communication ...
  double compute_silent = 0.0;     ///< ... and without.
  double alone_sm_mhz = 0.0;       ///< 0: unknown.
  double step_sm_mhz = 0.0;        ///< Of the slowest GPU; 0: unknown.
  bool clock_fell = false;         ///< A clock is more than 3% below that of the round in which it was highest.
};

struct CalibrationLimits {
  double seconds = 20.0;         ///< Rounds go on no longer; the first one is always made.
  double interval_width = 0.01;  ///< They end where the interval of the efficiency is narrower.
};

/// What a job measures about itself after training, over rounds. A round is windows of the four kinds of work and then
/// the same in reverse order, so that a drift cancels within it; its means over both are one observation. Seconds are
/// per step. A GPU that has rested is faster for a while, until it is at its power limit again: where steps are long
/// enough to bring a GPU there, a window behind one in which a rank rested has a longer lead.
///
/// From the step of rank 0 alone to that of the job the parts add up, each with its sign:
///   together      mean of the silent step over the ranks - alone: clocks, memory bandwidth and cores that ranks share,
///                 multiprocessors left to communication, and what rank 0 differs from the others
///   stragglers    the rank whose silent step is the slowest on average - mean over the ranks. The largest of several
///                 means is too large by chance: the intervals of this part and of what follows allow for it
///   exposed       step - silent step of that rank, which is the sum of
///     slowed_down   what communication takes from compute: to the end of backward, with - without communication
///     waiting       the rest: for the end of communication, and in each step for the rank that is late
struct Calibration {
  double samples_per_second = 0.0;        ///< Of all ranks.
  double baseline_per_second = 0.0;       ///< Of rank 0 alone, same batch per rank.
  Estimate scaling_efficiency{1.0, 0.0};  ///< Step of rank 0 alone / step of the job.
  double alone_seconds = 0.0;
  double step_seconds = 0.0;
  double communication_seconds = 0.0;
  std::vector<double> silent_seconds;  ///< Of each rank (empty for one rank).
  std::size_t slowest_rank = 0;
  double silent_mean_seconds = 0.0;
  /// Silent step of rank 0 / mean over the ranks. The baseline is that much longer than one of the mean rank, as far as
  /// ranks differ alone as they do together.
  Estimate rank_0{1.0, 0.0};
  /// Of each rank, CPU time / time of the silent step, which waits for nothing: below 1, the rank had to wait for a
  /// core. Empty for one rank and if GPUs compute.
  std::vector<double> cpu_share;
  Estimate together, stragglers, exposed, slowed_down, waiting;
  Estimate exposed_fraction{0.0, 0.0};  ///< exposed / communication
  std::vector<CalibrationRound> rounds;
  /// The limit that ended the rounds before the efficiency's interval was narrow.
  std::optional<double> limit_seconds;

  double silent_slowest_seconds() const { return silent_seconds.empty() ? 0.0 : silent_seconds[slowest_rank]; }
};

/// For a run that trained so long, and whose steps were to be timed for `min_seconds`: a quarter of the longer one, 4
/// to 20 s, so that there are four rounds of a second.
double calibration_seconds(double train_seconds, double min_seconds);

/// Collective. `step_seconds`: what a step takes, about. `gpu`: windows are long enough to bring a GPU to its clock.
Calibration calibrate(TimedJob& job, double samples_per_step, double step_seconds, bool gpu,
                      const CalibrationLimits& limits);

/// Of `trainer`, whose parameters it spoils. `samples_per_second`: what training reached, to choose the windows by (and
/// the answer for one rank). `sensors` may be null. Collective.
Calibration calibrate(Trainer& trainer, const World& world, double samples_per_second, const CalibrationLimits& limits,
                      SensorSampler* sensors = nullptr);

}  // namespace ddptrain
