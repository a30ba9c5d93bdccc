#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/train/results/estimate.h"

namespace ddptrain {

/// Why measured times are not to be trusted.
struct Disturbance {
  std::string why;         ///< Empty: nothing is known against them.
  bool by_others = false;  ///< By other programs, and not by more threads than cores.
};

/// The kinds of work that are timed in turn.
enum class TimedWork : std::uint8_t {
  alone,         ///< The step without communication, on rank 0 with its whole device, while the others sleep.
  step,          ///< The training step.
  compute_step,  ///< The step without communication, on all ranks. Kernels leave room for communication as in training.
  communication,  ///< The communication of a step without its compute.
};

/// A window as it was timed, in seconds. Per rank; a rank that takes no part has 0.
struct TimedWindow {
  TimedWork work = TimedWork::alone;
  std::uint64_t steps = 0;
  std::vector<double> seconds;
  std::vector<double> waited;       ///< For a core. Empty if GPUs compute.
  std::vector<double> cpu_seconds;  ///< Empty if GPUs compute.
  std::vector<double> undelayed;    ///< Seconds per step without waits for cores, where others caused these.
};

/// Two pairs of single steps in seconds, each with and without communication, in the order A B B A: means of the pairs.
struct StepGroup {
  double exposed = 0.0;              ///< Step - compute step of the rank that is slowest in it.
  double stragglers = 0.0;           ///< That compute step - mean of the ranks.
  std::vector<double> compute_step;  ///< Per rank.
};

/// Means over the windows of one round, in seconds per step, without waits for cores.
struct CalibrationRound {
  double alone = 0.0;
  double step = 0.0;                     ///< The slowest rank.
  double communication = 0.0;            ///< The slowest rank.
  std::vector<double> compute_step;      ///< Per rank.
  std::vector<double> compute_step_cpu;  ///< Per rank: CPU time / time. Empty if GPUs compute.
  double compute_beside = 0.0;           ///< To the end of backward with communication, mean over the ranks.
  double compute_without = 0.0;          ///< To the end of backward without communication, mean over the ranks.
  double alone_sm_mhz = 0.0;             ///< 0: unknown.
  double step_sm_mhz = 0.0;              ///< The slowest GPU; 0: unknown.
  bool clock_fell = false;               ///< A clock is more than 3% below its highest in any round.
  std::vector<TimedWindow> windows;
  std::vector<StepGroup> groups;    ///< Only if steps with and without communication alternated one by one.
  std::vector<double> slowed_down;  ///< Of each group of traced steps, if steps alternated.
};

/// The baseline measurement: what a job measures about itself after training. A round has windows of the four kinds of
/// work and then the same windows in reverse order, so that a drift cancels. The means of a round are one observation.
/// No round begins after the limit of time, after a signal, or once the interval of the efficiency has been narrower
/// than a point after three rounds in a row. Seconds are per step. An idle GPU is faster for a while, until it reaches
/// its power limit again. So if steps are long enough to heat a GPU, a round times single steps, with and without
/// communication by turns (step_pairs.h), once all ranks have settled. It has no windows of compute steps then, and
/// each group of four single steps is an observation of stragglers and exposed communication.
///
/// The parts below add up from the step of rank 0 alone to the step of the job. Each has a sign. "Compute step" is the
/// step without communication, in which all ranks run at once.
///   together      mean compute step over the ranks - step of rank 0 alone. Causes are contention for clocks, memory
///                 and cores, multiprocessors that are left to communication, and differences between ranks
///   stragglers    compute step of the slowest rank - mean compute step. The largest of several means is biased. The
///                 intervals of this part and the next ones allow for that
///   exposed       step - compute step of the slowest rank; the sum of the next two. With alternating steps, of the
///                 rank that was slowest in each of them, so what ranks lose by turns is a part of the stragglers
///     slowed_down   how much longer the compute takes (to the end of backward) with communication than without
///     waiting       the rest: waits for the end of communication, and in each step for the slowest rank
struct Calibration {
  double samples_per_second = 0.0;        ///< All ranks.
  double baseline_per_second = 0.0;       ///< Rank 0 alone, with the same batch per rank.
  Estimate scaling_efficiency{1.0, 0.0};  ///< Step of rank 0 alone / step of the job.
  double alone_seconds = 0.0;
  double step_seconds = 0.0;
  double communication_seconds = 0.0;
  std::vector<double> compute_step_seconds;  ///< Per rank (empty for one rank).
  std::size_t slowest_rank = 0;
  double compute_step_mean_seconds = 0.0;
  /// Step without communication: rank 0 / mean over the ranks. The baseline of rank 0 differs from a mean rank's by
  /// about this factor.
  Estimate rank_0{1.0, 0.0};
  /// Per rank: CPU time / time, of the step without communication. A value below 1 means that the rank waited for a
  /// core. Empty for one rank and if GPUs compute.
  std::vector<double> cpu_share;
  Estimate together;
  Estimate stragglers;
  Estimate exposed;
  Estimate slowed_down;
  Estimate waiting;
  Estimate exposed_fraction{0.0, 0.0};  ///< exposed / communication
  /// The longest wait for a core, as a share of the time in which this rank had work.
  double core_wait = 0.0;
  std::size_t core_wait_rank = 0;
  std::optional<double> cores_taken;  ///< See CoreShare::taken().
  Disturbance disturbed;              ///< By other programs: medians count.
  bool counts_waits = false;          ///< Steps contain waits for cores, because messages go between hosts.
  std::vector<CalibrationRound> rounds;
  /// The limit of time, if it ended the rounds before the interval of the efficiency was narrow enough.
  std::optional<double> limit_seconds;
  /// The limit of time that was asked for, if the rounds ended earlier because that interval was narrow.
  std::optional<double> unspent_limit_seconds;
  double seconds = 0.0;  ///< Of all windows.

  /// Of the slowest rank of each step, if steps alternated.
  std::optional<double> slowest_compute_step_seconds = {};

  /// Without alternating steps, of the rank that is slowest on average.
  double compute_step_slowest_seconds() const {
    const double of_rank = compute_step_seconds.empty() ? 0.0 : compute_step_seconds[slowest_rank];
    return slowest_compute_step_seconds.value_or(of_rank);
  }
};

}  // namespace ddptrain
