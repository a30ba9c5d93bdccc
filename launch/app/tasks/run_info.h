#pragma once

#include <nlohmann/json.hpp>

#include "launch/app/job/rank_device.h"
#include "launch/app/plan/run_plan.h"
#include "runtime/train/replica/trainer.h"
#include "runtime/train/report/report.h"

namespace ddptrain {

/// With what would make a fair comparison where an NCCL_* variable decided.
GradientPath gradient_path_of(const Trainer& trainer, const MeshShape& mesh);

/// For the report of a run: all but where it was resumed, and the topology. `sampled`: see describe_run().
RunInfo run_info(const Job& job, const RankDevice& rank, const RunPlan& plan, const Trainer& trainer,
                 const Model* sampled);

/// The fields with which the line of a task in --metrics begins: event, version, model, device, ranks and sizes.
nlohmann::ordered_json task_line(const char* event, const RunPlan& plan, const Workload& workload, const Device& device,
                                 const Model& model);

}  // namespace ddptrain
