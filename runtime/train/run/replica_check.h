#pragma once

#include <string>

#include "runtime/comm/tensor_group.h"
#include "runtime/comm/world.h"
#include "runtime/device/device.h"
#include "runtime/train/step/store/training_state.h"

namespace ddptrain {

/// Names the ranks whose replicas differ from most others', or what each rank holds where no replica has a majority,
/// and the first array in which they differ; empty where all are the same. Compares checksums of what every rank has
/// alike: weights, and master weights and moments that are not sharded. `group`: the ranks that split layers, or null;
/// of these, what is not split is compared. Collective; waits.
std::string differing_replicas(const TrainingState& state, const World& replicas, const TensorGroup* group,
                               Device& device);

}  // namespace ddptrain
