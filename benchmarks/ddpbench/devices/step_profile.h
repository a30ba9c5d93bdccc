#pragma once

#include "runtime/device/device.h"
#include "runtime/train/replica/trainer.h"

namespace ddptrain::bench {

/// Seconds per step: medians over rounds in which all are measured in turn, each on its slowest rank. Parts are
/// differences between the step cut short after one part and after the next, so they add up to `step`, and noise can
/// make a small one negative.
struct StepTimes {
  double step = 0.0;     ///< As a CUDA graph if there are graphs, else launched kernel by kernel.
  double data = 0.0;     ///< Input alone.
  double forward = 0.0;  ///< Without data, and without what of the backward pass a model begins in it.
  double backward = 0.0;
  double optimizer = 0.0;              ///< The part that does not overlap with backward.
  double exposed_communication = 0.0;  ///< Step - step without communication; 0 if there is none.
  double stragglers =
      0.0;  ///< Slowest rank - mean of the ranks, in a step without communication. The parts contain it.
  double communication = 0.0;  ///< The all-reduces alone.
  double eager_step = 0.0;     ///< Launched kernel by kernel. The difference to `step` is launch gaps.
  int rounds = 0;
};

/// The passes that are timed to get StepTimes, in seconds per step: medians over rounds of the slowest rank. 0: not
/// measured.
struct TimedPasses {
  double step = 0.0;
  double eager_step = 0.0;
  double data = 0.0;                  ///< Alone.
  double forward = 0.0;               ///< With data.
  double forward_and_backward = 0.0;  ///< With data.
  double compute_step = 0.0;          ///< The step without communication; the step if it has none.
  double compute_step_mean = 0.0;     ///< The same, mean over the ranks.
  double communication = 0.0;
};

/// All but the number of rounds.
StepTimes step_times_of(const TimedPasses& timed);

/// Goes on until `min_seconds` of whole steps have been timed. `job`: all ranks that train, each of which has all
/// stages of its replica. The steps of `trainer` should be graphs, and its parameters are spoilt.
/// `data`: queues the input of a step alone; null if it is a part of forward. Collective.
StepTimes profile_step(const World& job, Trainer& trainer, StepGraph* data, Device& device, double min_seconds = 0.0);

}  // namespace ddptrain::bench
