#pragma once

#include <filesystem>
#include <string>

namespace ddptrain {

/// Binds this process, its threads to come and its memory to the NUMA node of a GPU. Where the machine hides that node,
/// it only undoes the binding to one core that Open MPI gives to each of two ranks by default, because threads of the
/// loader and of NCCL would share that core. What the user chose (a binding policy of mpirun, taskset) stays, as does a
/// binding within the right node. Call it before threads are started. `pci_bus_id`: empty on the CPU, where bindings
/// stay as they are. Never throws; returns what it did, for the log: "NUMA node 1 (CPUs 32-63)", "not bound (NUMA node
/// hidden)" ...
std::string bind_to_numa(const std::string& pci_bus_id, const std::filesystem::path& sysfs = "/sys");

}  // namespace ddptrain
