#include "runtime/topology/numa_binding.h"

#include <hwloc.h>

#include <cstdlib>
#include <memory>
#include <optional>

#include "runtime/core/error.h"
#include "runtime/topology/pci.h"

namespace ddptrain {

namespace {

using Topology = std::unique_ptr<hwloc_topology, decltype([](auto* topology) { hwloc_topology_destroy(topology); })>;
using Bitmap = std::unique_ptr<hwloc_bitmap_s, decltype([](auto* bitmap) { hwloc_bitmap_free(bitmap); })>;

/// Cores and memory, and which of them this process may use. Without devices, whose discovery takes seconds.
Topology load_topology() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return nullptr;
  Topology topology(raw);
  return hwloc_topology_load(raw) == 0 ? std::move(topology) : nullptr;
}

Bitmap current_binding(hwloc_topology_t topology) {
  Bitmap set(hwloc_bitmap_alloc());
  return hwloc_get_cpubind(topology, set.get(), HWLOC_CPUBIND_PROCESS) == 0 ? std::move(set) : nullptr;
}

bool bind_process(hwloc_topology_t topology, hwloc_const_bitmap_t set) {
  return hwloc_set_cpubind(topology, set, HWLOC_CPUBIND_PROCESS) == 0;
}

std::string list_of(hwloc_const_bitmap_t set) {
  char* text = nullptr;
  if (hwloc_bitmap_list_asprintf(&text, set) < 0) return "?";
  std::string list(text);
  std::free(text);
  return list;
}

/// Whether mpirun bound the process to one core by default, not because the user asked for it.
bool bound_to_core_by_default(hwloc_topology_t topology, hwloc_const_bitmap_t binding) {
  const bool by_mpirun = std::getenv("OMPI_MCA_orte_bound_at_launch") != nullptr;
  const bool asked_for = std::getenv("OMPI_MCA_hwloc_base_binding_policy") != nullptr;
  const int cores = hwloc_get_nbobjs_inside_cpuset_by_type(topology, binding, HWLOC_OBJ_CORE);
  return by_mpirun && !asked_for && cores <= 1;
}

std::string widen(hwloc_topology_t topology, hwloc_const_bitmap_t binding) {
  const hwloc_const_bitmap_t all = hwloc_topology_get_allowed_cpuset(topology);
  if (!bound_to_core_by_default(topology, binding)) {
    if (hwloc_bitmap_isincluded(all, binding)) return "not bound (NUMA node hidden)";
    return fmt::format("CPUs {} (binding kept; NUMA node hidden)", list_of(binding));
  }
  if (!bind_process(topology, all)) return fmt::format("CPUs {} (binding kept; rebinding failed)", list_of(binding));
  return "not bound (removed mpirun's binding to one core; NUMA node hidden)";
}

std::string bind_to_node(hwloc_topology_t topology, int number, hwloc_const_bitmap_t binding) {
  const hwloc_obj_t node = hwloc_get_numanode_obj_by_os_index(topology, static_cast<unsigned>(number));
  if (node == nullptr || hwloc_bitmap_iszero(node->cpuset)) {
    return fmt::format("CPUs {} (not allowed on NUMA node {} of its GPU)", list_of(binding), number);
  }
  std::string cpus = list_of(binding);
  if (!hwloc_bitmap_isincluded(binding, node->cpuset) || bound_to_core_by_default(topology, binding)) {
    if (!bind_process(topology, node->cpuset)) {
      return fmt::format("CPUs {} (binding to NUMA node {} failed)", cpus, number);
    }
    cpus = list_of(node->cpuset);
  }
  const bool memory = hwloc_set_membind(topology, node->nodeset, HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET) == 0;
  return fmt::format("NUMA node {} (CPUs {}{})", number, cpus, memory ? "" : "; memory not bound");
}

}  // namespace

std::string bind_to_numa(const std::string& pci_bus_id, const std::filesystem::path& sysfs) {
  const Topology topology = load_topology();
  const Bitmap binding = topology ? current_binding(topology.get()) : nullptr;
  if (!binding) return "binding unknown (hwloc does not report it)";
  if (pci_bus_id.empty()) {
    const bool all = hwloc_bitmap_isincluded(hwloc_topology_get_allowed_cpuset(topology.get()), binding.get());
    return all ? "not bound" : fmt::format("CPUs {}", list_of(binding.get()));
  }
  const std::optional<int> node = numa_node_of(pci_bus_id, sysfs);
  return node ? bind_to_node(topology.get(), *node, binding.get()) : widen(topology.get(), binding.get());
}

}  // namespace ddptrain
