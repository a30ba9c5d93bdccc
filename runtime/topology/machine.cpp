#include "runtime/topology/machine.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <regex>
#include <set>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/topology/sysfs.h"

namespace ddptrain {

namespace {

namespace fs = std::filesystem;

/// Orders labels from near to far: NV# (fewer links are farther), PIX, PXB, PHB, NODE, SYS, "unknown".
int distance_of(const std::string& label) {
  constexpr std::array kLabels = {"PIX", "PXB", "PHB", "NODE", "SYS"};
  if (label.rfind("NV", 0) == 0) return -std::stoi(label.substr(2));
  const auto found = std::ranges::find(kLabels, label);
  return found == kLabels.end() ? std::numeric_limits<int>::max() : static_cast<int>(found - kLabels.begin());
}

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

std::optional<double> rate_between(const GpuInfo& a, const GpuInfo& b, int nvlinks) {
  if (nvlinks > 0) {
    if (!a.nvlink_gb_per_s || !b.nvlink_gb_per_s) return std::nullopt;
    return nvlinks * std::min(*a.nvlink_gb_per_s, *b.nvlink_gb_per_s);
  }
  if (!a.pcie || !b.pcie || !a.pcie->gb_per_s() || !b.pcie->gb_per_s()) return std::nullopt;
  return std::min(*a.pcie->gb_per_s(), *b.pcie->gb_per_s());
}

/// `nvlinks`: see DriverFacts.
void add_links(Machine& machine, const std::optional<std::vector<int>>& nvlinks, const SystemFiles& files) {
  std::vector<std::string> functions;
  for (const GpuInfo& gpu : machine.gpus) functions.push_back(gpu.pci);
  for (const NicInfo& nic : machine.nics) functions.push_back(nic.pci);
  const std::size_t gpus = machine.gpus.size();
  machine.links.assign(functions.size(), std::vector<std::string>(functions.size(), "X"));
  machine.gb_per_s.assign(gpus, std::vector<std::optional<double>>(gpus));
  std::size_t pair = 0;
  for (std::size_t i = 0; i < functions.size(); ++i) {
    for (std::size_t j = i + 1; j < functions.size(); ++j) {
      std::string& label = machine.links[i][j] = pcie_label(functions[i], functions[j], files);
      if (j < gpus && !nvlinks) label = "unknown";
      const int joined = j < gpus && nvlinks ? nvlinks->at(pair++) : 0;
      if (joined > 0) label = fmt::format("NV{}", joined);
      machine.links[j][i] = label;
      if (j >= gpus || label == "unknown") continue;
      machine.gb_per_s[i][j] = machine.gb_per_s[j][i] = rate_between(machine.gpus[i], machine.gpus[j], joined);
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

/// Empty if the links are unknown.
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

std::optional<double> PcieLink::gb_per_s() const {
  constexpr std::array<double, 7> kOf16Lanes = {4.0,  8.0,   15.75, 31.0,
                                                63.0, 121.0, 242.0};  // as PCI-SIG publishes them
  if (generation < 1 || generation > static_cast<int>(kOf16Lanes.size())) return std::nullopt;
  return kOf16Lanes[static_cast<std::size_t>(generation - 1)] * width / 16.0;
}

Machine describe_machine(const std::string& hostname, DriverFacts facts, const SystemFiles& files) {
  Machine machine;
  machine.hostname = hostname;
  add_processors(machine, files);
  machine.gpus = std::move(facts.gpus);
  for (GpuInfo& gpu : machine.gpus) add_place(gpu, files);
  machine.nics = find_nics(files.sysfs);
  add_links(machine, facts.nvlinks, files);
  machine.p2p = std::move(facts.p2p);
  machine.p2p.resize(machine.gpus.size(), std::vector<std::optional<bool>>(machine.gpus.size()));
  return machine;
}

ComparedPairs compare_pairs(const Machine& machine) {
  std::vector<GpuPair> pairs;
  for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
    for (std::size_t j = i + 1; j < machine.gpus.size(); ++j) pairs.emplace_back(i, j);
  }
  if (pairs.empty()) return {};
  const auto label = [&](const GpuPair& pair) { return machine.links[pair.first][pair.second]; };
  const auto distance = [&](const GpuPair& pair) { return distance_of(label(pair)); };
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

std::vector<std::string> shared_nic_warnings(const std::string& hostname, const std::vector<RankOfGpu>& ranks,
                                             const SystemFiles& files) {
  DriverFacts facts;
  for (const RankOfGpu& rank : ranks) facts.gpus.emplace_back().pci = normalized_pci_bus_id(rank.pci);
  std::vector<std::string> lines;
  for (const auto& [nics, gpus] : shared_nics(describe_machine(hostname, facts, files))) {
    std::vector<int> sharing;
    for (const std::size_t gpu : gpus) sharing.push_back(ranks[gpu].rank);
    lines.push_back(fmt::format(
        "{}: ranks {} share the network card{} {}: to other hosts, each has {}/{} of {} rate. Take GPUs with cards of "
        "their own (ddptopo), or fewer ranks per host.",
        hostname, fmt::join(sharing, ", "), nics.size() == 1 ? "" : "s", fmt::join(nics, ", "), nics.size(),
        sharing.size(), nics.size() == 1 ? "its" : "a card's"));
  }
  return lines;
}

std::string topology_label(int ranks, int nodes, const std::vector<std::string>& gpus) {
  if (ranks <= 1) return "none";
  if (nodes > 1) return "NET";
  if (gpus.empty()) return "host";
  const std::set<std::string> distinct(gpus.begin(), gpus.end());  // ranks may share a GPU
  if (distinct.size() == 1) return "GPU";
  const Machine machine = describe_machine("", driver_facts({distinct.begin(), distinct.end()}));
  const std::optional<GpuPair> farthest = compare_pairs(machine).farthest;
  return farthest ? machine.links[farthest->first][farthest->second] : "unknown";
}

}  // namespace ddptrain
