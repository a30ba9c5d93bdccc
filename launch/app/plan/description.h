#pragma once

#include <cstddef>

#include "launch/app/plan/run_plan.h"
#include "runtime/train/replica/replica.h"
#include "runtime/train/report/description.h"

namespace ddptrain {

/// Describes a planned run: the memory of rank `rank` of its mesh, as the components report it, and all facts but the
/// flags that decide the parameters. `tree_bytes` is StepCommunication::tree_bytes(). `sampled` is the model that
/// writes samples; null: none.
Description describe_run(const RunPlan& plan, int rank, const Replica& replica, std::size_t tree_bytes,
                         const Model* sampled);

/// The same with a replica on the meta device. It uses no GPU. Call it after Workload::load(). Not collective.
Description describe_on_meta(const RunPlan& plan, Workload& workload, int rank);

}  // namespace ddptrain
