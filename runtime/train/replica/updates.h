#pragma once

#include "runtime/train/replica/replica.h"
#include "runtime/train/step/optimizer.h"
#include "runtime/train/step/step_communication.h"
#include "runtime/train/step/trainer_options.h"

namespace ddptrain {

/// What turns the gradients of a replica into its next weights: the optimizer, and the communication with the other
/// replicas.
struct Updates {
  /// The replica outlives the object. Collective.
  Updates(const TrainerOptions& options, Replica& replica);
  Updates(const Updates&) = delete;
  Updates& operator=(const Updates&) = delete;

  Optimizer optimizer;
  StepCommunication communication;
};

}  // namespace ddptrain
