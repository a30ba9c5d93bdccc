#pragma once

#include <memory>
#include <string>

#include "launch/app/job/choose_device.h"
#include "launch/app/job/job.h"
#include "launch/app/plan/run_plan.h"
#include "runtime/device/device.h"

namespace ddptrain {

/// The device of this rank.
struct RankDevice {
  explicit RankDevice(Job& job);  ///< Collective.

  /// For the plan of the run.
  PlannedMachine machine(const Job& job) const { return {job.mesh.shape(), kind, gpus.ranks_per_gpu, gpus.shared}; }

  DeviceKind kind;
  std::string pci_bus_id;  ///< Of this rank's GPU; empty on the CPU.
  GpusOfJob gpus;
  std::string binding;  ///< What bind_to_numa() did.
  std::unique_ptr<Device> device;
};

/// Checks the hosts, opens the workload, and starts the device while the workload loads its data. Collective.
RankDevice start_device_and_data(Job& job);

/// On rank 0.
void warn(const World& world, const std::vector<std::string>& lines);

/// A line about each rank: its place, host, device and processors. Collective.
void log_ranks(const World& world, const MeshShape& mesh, const RankDevice& rank);

}  // namespace ddptrain
