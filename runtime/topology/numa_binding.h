#pragma once

#include <filesystem>
#include <string>

namespace ddptrain {

/// Binds this process, its future threads and its memory to the NUMA node of a GPU. If the machine hides that node, it
/// only removes the binding to one core that Open MPI gives each rank of a two-rank job by default, because the threads
/// of the loader and of NCCL would share that core. It keeps a binding that the user chose (a policy of mpirun,
/// taskset) and a binding within the right node. Call it before threads start. `pci_bus_id`: empty on the CPU, where
/// bindings stay. Never throws. Returns what it did, for the log, such as "NUMA node 1 (CPUs 32-63)".
std::string bind_to_numa(const std::string& pci_bus_id, const std::filesystem::path& sysfs = "/sys");

}  // namespace ddptrain
