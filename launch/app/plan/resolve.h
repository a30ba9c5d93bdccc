#pragma once

#include "launch/app/flags/options.h"

/// The values of a RunPlan that depend on the machine or on several flags.

namespace ddptrain {

NumberFormat chosen_format(const Options& options, DeviceKind device);
DeviceOptions device_options(const Options& options, DeviceKind device, int ranks_per_gpu = 1);
/// Whether MPI reduces gradients instead of NCCL.
bool sums_with_mpi(const Options& options, DeviceKind device);
/// Whether MPI sends f32 gradients in bf16: CommunicatorOptions::bf16_between_hosts.
bool sends_bf16_between_hosts(const Options& options, DeviceKind device);
/// UsageError if flags contradict the device's precision.
void check_precision(const Options& options, const Workload& workload, DeviceKind device);
/// UsageError for --offload on a device without memory of its own. For runs that train.
void check_offload(const Options& options, DeviceKind device);
float scaled_learning_rate(const Options& options, int replicas);
TrainerOptions trainer_options(const Options& options, int replicas, std::int64_t total_steps);

}  // namespace ddptrain
