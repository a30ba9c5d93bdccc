#pragma once

#include <memory>

#include "launch/app/plan/run_plan.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/mesh.h"
#include "runtime/train/step/pipeline.h"

namespace ddptrain {

/// The settings of the communicator between replicas. `world`: all ranks of the job.
CommunicatorOptions replica_communicator_options(const RunPlan& plan, const World& world);

/// Whether NCCL connects the replicas of these ranks.
bool uses_nccl(const RunPlan& plan, const World& world);

/// The other ranks of this rank's replica, and the communicators to them. The mesh and the device outlive it.
class ReplicaRanks {
 public:
  /// `training`: exchanges of split layers are large, and overlap with computation. Collective.
  ReplicaRanks(const Mesh& mesh, Device& device, const RunPlan& plan, bool training);
  Stages stages() const { return {mesh_.stages(), stages_.get(), group_.get()}; }

 private:
  const Mesh& mesh_;
  std::unique_ptr<Communicator> stages_;  ///< Null with one stage.
  std::unique_ptr<Communicator> layers_;  ///< Null if layers are not split.
  std::unique_ptr<TensorGroup> group_;
};

}  // namespace ddptrain
