#pragma once

#include <string>

#include "runtime/comm/tensor_group.h"
#include "runtime/comm/world.h"
#include "runtime/device/device.h"
#include "runtime/train/step/store/training_state.h"

namespace ddptrain {

/// Names the ranks whose replicas differ from the majority, and the first array that differs. Without a majority it
/// says what each rank has. Empty if all replicas are the same. It compares checksums of weights, and of master weights
/// and moments that are not sharded. `replicas`: null if replicas train on their own and differ. `group` has the ranks
/// that split layers, or is null; the arrays that they do not split are compared among them, too. Collective; waits.
std::string differing_replicas(const TrainingState& state, const World* replicas, const TensorGroup* group,
                               Device& device);

/// All ranks throw the same Error if `hash` differs between ranks. The message has every rank's hash. Collective.
void check_same_on_all_ranks(const World& world, const std::string& hash, const std::string& what);

}  // namespace ddptrain
