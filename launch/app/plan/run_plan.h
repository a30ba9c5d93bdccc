#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/app/flags/options.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/mesh_shape.h"
#include "runtime/device/device.h"
#include "runtime/train/dataset.h"
#include "runtime/train/run/run_options.h"
#include "runtime/train/step/step_order.h"
#include "runtime/train/step/store/virtual_ranks.h"
#include "runtime/train/step/trainer_options.h"

namespace ddptrain {

/// What a run uses of the machine.
struct PlannedMachine {
  MeshShape mesh = {};
  DeviceKind device = DeviceKind::cpu;
  int ranks_per_gpu = 1;  ///< The most that one GPU has.
  int shared_gpus = 0;    ///< All GPUs of the job if ranks share one; 0: no rank does.
};

/// The mesh of these ranks that --pp and --tp ask for. UsageError if they do not divide the ranks.
MeshShape planned_mesh(const Options& options, int ranks);

/// How long a run trains.
struct RunLength {
  std::int64_t samples_per_step = 0;
  std::int64_t steps_per_epoch = 0;
  std::int64_t dropped = 0;  ///< Samples of an epoch that no step uses.
  std::int64_t steps = 0;    ///< In all.
  std::int64_t epochs = 0;   ///< In all; the last one may be cut short.
};

/// What a run is: all that follows from the flags, the machine and the data, decided once, before the run begins.
/// Options are what was typed. Whatever is made for a run is made from this.
struct RunPlan {
  const std::string model;
  const MeshShape mesh;
  const DeviceKind device;
  const NumberFormat format;    ///< What it computes in.
  const DeviceOptions compute;  ///< The same for the device, and its other options.
  const bool shares_gpus;       ///< Ranks may share GPUs.

  const TrainerOptions trainer;           ///< With the batch, the scaled learning rate, and the steps of its schedule.
  const RunOptions run;                   ///< The baseline is measured only if one rank alone can be one.
  const std::optional<RunLength> length;  ///< Empty for what does not train.

  const CommunicatorOptions communicator;  ///< Between replicas; without its host.
  const bool sums_with_mpi;                ///< MPI reduces gradients, not NCCL.
  const bool hierarchical;                 ///< MPI reduces within each host first.

  const bool writes_checkpoints;
  const bool saves_model;
  const OuterOptions outer;  ///< Of a group that shares a log; without an address it is none.

  /// Which virtual ranks a rank of the mesh computes. UsageError if they do not divide.
  VirtualRanks virtual_ranks(int rank) const;
  std::vector<Pass> passes_of_step(int rank) const;  ///< Of a rank of the mesh.
  bool reduces_gradients() const { return trainer.overlap != OverlapMode::none; }
};

/// Plans the run of these flags with `batch` samples per rank and micro-step. `data`: the data set of a run that
/// trains; null: what the plan is for does not train. UsageError if `data` has too few samples for a step.
RunPlan plan_run(const Options& options, const Workload& workload, const PlannedMachine& machine, std::int64_t batch,
                 const Dataset* data = nullptr);

}  // namespace ddptrain
