#include "runtime/topology/machine.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/topology/sysfs.h"

namespace ddptrain {

namespace {

namespace fs = std::filesystem;

/// Folders named PREFIX0, PREFIX1 ... by number.
std::map<int, fs::path> numbered_folders(const fs::path& folder, const std::string& prefix) {
  const std::regex form(prefix + "([0-9]{1,7})");
  std::map<int, fs::path> found;
  for (const fs::path& entry : sorted_entries(folder)) {
    const std::string name = entry.filename().string();
    std::smatch parts;
    if (std::regex_match(name, parts, form)) found.emplace(std::stoi(parts[1]), entry);
  }
  return found;
}

/// The socket of a NUMA node's processors.
std::optional<int> socket_of(const fs::path& node) {
  for (const auto& [index, folder] : numbered_folders(node, "cpu")) {
    const auto socket = value_in<int>(folder / "topology/physical_package_id");
    if (socket.value_or(-1) >= 0) return socket;
  }
  return std::nullopt;
}

void add_processors(Machine& machine, const SystemFiles& files) {
  if (const std::string model = cpuinfo("model name", files.proc); !model.empty()) machine.cpu_model = model;
  const fs::path system = files.sysfs / "devices/system";
  std::set<std::string> packages;
  for (const auto& [index, folder] : numbered_folders(system / "cpu", "cpu")) {
    const std::string package = first_line(folder / "topology/physical_package_id");  // exists for online CPUs
    if (package.empty()) continue;
    ++machine.cpus;
    if (package != "-1") packages.insert(package);
  }
  if (!packages.empty() && !in_virtual_machine(files.proc)) machine.sockets = static_cast<int>(packages.size());
  for (const auto& [index, folder] : numbered_folders(system / "node", "node")) {
    machine.numa_nodes.push_back(
        {index, machine.sockets ? socket_of(folder) : std::nullopt, first_line(folder / "cpulist")});
  }
}

void add_place(GpuInfo& gpu, const SystemFiles& files) {
  gpu.numa_node = numa_node_of(gpu.pci, files.sysfs);
  gpu.pci_path = pci_path(gpu.pci, files.sysfs);
  const std::string cpus = first_line(files.sysfs / "bus/pci/devices" / gpu.pci / "local_cpulist");
  if (!cpus.empty() && (gpu.numa_node || !in_virtual_machine(files.proc))) gpu.cpu_affinity = cpus;
}

std::optional<double> rate_between(const GpuInfo& a, const GpuInfo& b, const std::optional<GpuPair>& pair) {
  if (pair && pair->nvlinks > 0) {
    if (!a.nvlink_gb_per_s || !b.nvlink_gb_per_s) return std::nullopt;
    return pair->nvlinks * std::min(*a.nvlink_gb_per_s, *b.nvlink_gb_per_s);
  }
  if (!pair || !pair->ancestor || !a.pcie || !b.pcie || !a.pcie->gb_per_s || !b.pcie->gb_per_s) return std::nullopt;
  return std::min(*a.pcie->gb_per_s, *b.pcie->gb_per_s);
}

void add_gpu_links(Machine& machine, const std::optional<std::vector<GpuPair>>& pairs) {
  const std::size_t count = machine.gpus.size();
  machine.gb_per_s.assign(count, std::vector<std::optional<double>>(count));
  std::size_t next = 0;
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = i + 1; j < count; ++j, ++next) {
      const auto pair = pairs ? std::optional(pairs->at(next)) : std::nullopt;
      machine.links[i][j] = machine.links[j][i] = pair ? link_label(*pair) : "unknown";
      machine.gb_per_s[i][j] = machine.gb_per_s[j][i] = rate_between(machine.gpus[i], machine.gpus[j], pair);
    }
  }
}

void add_nic_links(Machine& machine, const SystemFiles& files) {
  std::vector<std::string> functions;
  for (const GpuInfo& gpu : machine.gpus) functions.push_back(gpu.pci);
  for (const NicInfo& nic : machine.nics) functions.push_back(nic.pci);
  for (std::size_t i = 0; i < functions.size(); ++i) {
    for (std::size_t j = std::max(i + 1, machine.gpus.size()); j < functions.size(); ++j) {
      machine.links[i][j] = machine.links[j][i] = label_of(pcie_ancestor(functions[i], functions[j], files));
    }
  }
}

/// The NICs that count, as rows of machine.links.
std::vector<std::size_t> relevant_nics(const Machine& machine) {
  std::vector<std::size_t> rdma;
  std::vector<std::size_t> all;
  for (std::size_t n = 0; n < machine.nics.size(); ++n) {
    all.push_back(machine.gpus.size() + n);
    if (machine.nics[n].kind != "ethernet") rdma.push_back(all.back());
  }
  return rdma.empty() ? all : rdma;
}

/// Empty where the links are unknown.
std::vector<std::string> nearest_nics(const Machine& machine, std::size_t gpu, const std::vector<std::size_t>& nics) {
  std::vector<std::string> nearest;
  int best = distance_of("unknown");
  for (const std::size_t row : nics) {
    const std::string& name = machine.nics[row - machine.gpus.size()].name;
    const int distance = distance_of(machine.links[gpu][row]);
    if (distance < best) nearest.clear();
    best = std::min(best, distance);
    if (distance == best && (distance != distance_of("unknown") || nics.size() == 1)) nearest.push_back(name);
  }
  return nearest;
}

}  // namespace

Machine describe_machine(const std::string& hostname, DriverFacts facts, const SystemFiles& files) {
  Machine machine;
  machine.hostname = hostname;
  add_processors(machine, files);
  machine.gpus = std::move(facts.gpus);
  for (GpuInfo& gpu : machine.gpus) add_place(gpu, files);
  machine.nics = find_nics(files.sysfs);
  const std::size_t rows = machine.gpus.size() + machine.nics.size();
  machine.links.assign(rows, std::vector<std::string>(rows, "X"));
  add_gpu_links(machine, facts.pairs);
  add_nic_links(machine, files);
  machine.p2p = std::move(facts.p2p);
  machine.p2p.resize(machine.gpus.size(), std::vector<std::optional<bool>>(machine.gpus.size()));
  return machine;
}

ComparedPairs compare_pairs(const Machine& machine) {
  std::vector<GpuIndices> pairs;
  for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
    for (std::size_t j = i + 1; j < machine.gpus.size(); ++j) pairs.push_back({i, j});
  }
  if (pairs.empty()) return {};
  const auto label = [&](const GpuIndices& pair) { return machine.links[pair.a][pair.b]; };
  const auto distance = [&](const GpuIndices& pair) { return distance_of(label(pair)); };
  const auto nearest = std::ranges::min_element(pairs, {}, distance);
  const auto farthest = std::ranges::max_element(pairs, {}, distance);
  const bool all_known = pairs.size() == 1 || label(*farthest) != "unknown";
  ComparedPairs compared;
  if (all_known || label(*nearest).starts_with("NV")) compared.nearest = *nearest;
  if (all_known) compared.farthest = *farthest;
  compared.all_equal = label(*farthest) != "unknown" && label(*nearest) == label(*farthest);
  return compared;
}

std::vector<std::vector<std::string>> nics_of_gpus(const Machine& machine) {
  const auto nics = relevant_nics(machine);
  std::vector<std::vector<std::string>> of_gpus;
  for (std::size_t gpu = 0; gpu < machine.gpus.size(); ++gpu) of_gpus.push_back(nearest_nics(machine, gpu, nics));
  return of_gpus;
}

std::vector<SharedNics> shared_nics(const Machine& machine) {
  const auto of_gpus = nics_of_gpus(machine);
  std::map<std::vector<std::string>, std::vector<std::size_t>> groups;
  for (std::size_t gpu = 0; gpu < machine.gpus.size(); ++gpu) groups[of_gpus[gpu]].push_back(gpu);
  std::vector<SharedNics> shared;
  for (const auto& [names, gpus] : groups) {
    if (!names.empty() && gpus.size() > names.size()) shared.push_back({names, gpus});
  }
  return shared;
}

std::vector<std::string> shared_nic_warnings(const Machine& machine, const std::vector<RankOfGpu>& ranks) {
  const auto of_gpus = nics_of_gpus(machine);
  std::map<std::vector<std::string>, std::vector<int>> groups;
  for (const RankOfGpu& rank : ranks) {
    const std::string pci = normalized_pci_bus_id(rank.pci);
    for (std::size_t gpu = 0; gpu < machine.gpus.size(); ++gpu) {
      if (machine.gpus[gpu].pci == pci && !of_gpus[gpu].empty()) groups[of_gpus[gpu]].push_back(rank.rank);
    }
  }
  std::vector<std::string> lines;
  for (const auto& [nics, sharing] : groups) {
    if (sharing.size() <= nics.size()) continue;
    lines.push_back(fmt::format(
        "{}: ranks {} share the network card{} {}: to other hosts, each has {}/{} of {} rate. Take GPUs with cards of "
        "their own (ddptopo), or fewer ranks per host.",
        machine.hostname, fmt::join(sharing, ", "), nics.size() == 1 ? "" : "s", fmt::join(nics, ", "), nics.size(),
        sharing.size(), nics.size() == 1 ? "its" : "a card's"));
  }
  return lines;
}

std::string topology_label(int ranks, int nodes, const std::vector<std::string>& gpus) {
  if (ranks <= 1) return "none";
  if (nodes > 1) return "NET";
  if (gpus.empty()) return "host";
  const auto pairs = driver_facts(gpus).pairs;
  if (!pairs) return "unknown";
  std::vector<std::string> labels;
  for (const GpuPair& pair : *pairs) labels.push_back(link_label(pair));
  return slowest_link(labels);
}

}  // namespace ddptrain
