#pragma once

#include <vector>

#include "runtime/comm/world.h"
#include "runtime/device/device.h"
#include "runtime/train/trainer.h"

namespace ddptrain {

/// What a job measures about itself after training. All rates are medians over the same interleaved rounds, each of a
/// window of training steps, one of the same steps without communication, one of the communication alone, and one of
/// rank 0 alone while the others sleep. Seconds are per step and of the slowest rank where nothing else is said.
///
/// From the step of rank 0 alone (samples per step and rank / baseline_per_second) to step_seconds:
///   slower together       mean without communication - alone: clocks, memory bandwidth and cores that ranks share, and
///                         what rank 0 differs from the others
///   stragglers            step_seconds_without_communication - its mean over the ranks
///   exposed communication step_seconds - step_seconds_without_communication: what backward does not hide, compute
///                         slowed down beside communication, and waiting in each step for whichever rank is late in it
struct Calibration {
  double samples_per_second = 0.0;     ///< Of all ranks.
  double baseline_per_second = 0.0;    ///< Of rank 0 alone, same batch per rank, without communication.
  double scaling_efficiency = 1.0;     ///< (samples_per_second / W) / baseline_per_second
  double exposed_comm_fraction = 0.0;  ///< (step - step without communication) / communication, within [0, 1]
  double step_seconds = 0.0;
  double step_seconds_without_communication = 0.0;
  double step_seconds_without_communication_mean = 0.0;  ///< Over the ranks, in the same windows.
  /// Of each rank, median over the rounds (empty for one rank). A rank that is slow in most windows stands out here;
  /// the slowest of each window may be a different one every time.
  std::vector<double> step_seconds_without_communication_per_rank;
  double communication_seconds = 0.0;
  int rounds = 0;
};

/// Collective. `samples_per_second`: what training reached, to choose the windows by (and the answer for one rank).
/// Takes about 0.15 s on GPUs where steps are short, else about 10 s. Spoils the parameters.
Calibration calibrate(Trainer& trainer, const World& world, Device& device, double samples_per_second);

}  // namespace ddptrain
