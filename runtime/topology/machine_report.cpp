#include "runtime/topology/machine.h"

#include <algorithm>

#include "runtime/core/error.h"
#include "runtime/core/files/json.h"
#include "runtime/core/text.h"

namespace ddptrain {

namespace {

using nlohmann::json;
using Rows = std::vector<std::vector<std::string>>;

constexpr const char* kLegend =
    "\n"
    "  X        itself\n"
    "  NV#      # NVLinks, direct or through NVSwitches\n"
    "  PIX      at most one PCIe switch between them\n"
    "  PXB      several PCIe switches, without the host bridge\n"
    "  PHB      a PCIe host bridge (the CPU)\n"
    "  NODE     several host bridges of one NUMA node\n"
    "  SYS      the link between NUMA nodes\n"
    "  unknown  hidden, as virtual machines do\n";

std::string gpu_name(std::size_t number) { return fmt::format("GPU{}", number); }

std::string gigabytes(const std::optional<double>& rate) { return rate ? fmt::format("{:.4g}", *rate) : "unknown"; }

template <class T>
std::string or_unknown(const std::optional<T>& value) {
  return value ? fmt::format("{}", *value) : "unknown";
}

std::string processors_text(const Machine& machine) {
  const std::string sockets = machine.sockets ? counted(*machine.sockets, "socket") : "sockets unknown";
  std::string nodes;
  for (const NumaNode& node : machine.numa_nodes) {
    if (!nodes.empty()) nodes += "; ";
    const std::string socket = node.socket ? fmt::format("socket {}, ", *node.socket) : "";
    nodes += node.cpus.empty() ? fmt::format("{}: memory only", node.index)
                               : fmt::format("{}: {}CPUs {}", node.index, socket, node.cpus);
  }
  return text_table(
      {{"CPU", fmt::format("{}, {}, {}", machine.cpu_model, sockets, counted(machine.cpus, "logical processor"))},
       {"NUMA nodes", nodes.empty() ? "unknown" : nodes},
       {"GPUs", machine.gpus.empty() ? "none found" : std::to_string(machine.gpus.size())},
       {"NICs", machine.nics.empty() ? "none found" : std::to_string(machine.nics.size())}});
}

std::string matrix_text(const Machine& machine) {
  Rows rows = {{""}};
  for (std::size_t gpu = 0; gpu < machine.gpus.size(); ++gpu) rows.push_back({gpu_name(gpu)});
  for (const NicInfo& nic : machine.nics) rows.push_back({nic.name});
  for (std::size_t i = 1; i < rows.size(); ++i) rows[0].push_back(rows[i][0]);
  for (std::size_t i = 0; i < machine.links.size(); ++i) {
    rows[i + 1].insert(rows[i + 1].end(), machine.links[i].begin(), machine.links[i].end());
  }
  if (!machine.gpus.empty()) rows[0].insert(rows[0].end(), {"CPU affinity", "NUMA node"});
  for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
    rows[i + 1].push_back(machine.gpus[i].cpu_affinity.value_or("unknown"));
    rows[i + 1].push_back(or_unknown(machine.gpus[i].numa_node));
  }
  return fmt::format("\n{}{}", text_table(rows), kLegend);
}

std::string pcie_text(const std::optional<PcieLink>& pcie) {
  return pcie ? fmt::format("{}.0 x{}", pcie->generation, pcie->width) : "unknown";
}

std::string gpus_text(const Machine& machine) {
  Rows rows = {{"GPU", "name", "PCI", "PCIe", "GB/s", "NVLinks", "GB/s each"}};
  for (const GpuInfo& gpu : machine.gpus) {
    rows.push_back({gpu_name(rows.size() - 1), gpu.name, gpu.pci, pcie_text(gpu.pcie),
                    gigabytes(gpu.pcie ? gpu.pcie->gb_per_s() : std::nullopt), std::to_string(gpu.nvlinks),
                    gpu.nvlinks > 0 ? gigabytes(gpu.nvlink_gb_per_s) : "-"});
  }
  return fmt::format("\nRates are theoretical, in one direction.\n\n{}", text_table(rows));
}

std::string nics_text(const Machine& machine) {
  Rows rows = {{"NIC", "PCI", "PCIe", "GB/s", "kind", "NUMA node", "Gbit/s"}};
  for (const NicInfo& nic : machine.nics) {
    rows.push_back({nic.name, nic.pci, pcie_text(nic.pcie), gigabytes(nic.pcie ? nic.pcie->gb_per_s() : std::nullopt),
                    nic.kind, or_unknown(nic.numa_node), or_unknown(nic.speed_gbit)});
  }
  return fmt::format("\n{}", text_table(rows));
}

/// A matrix over the GPUs; `cell` gives the text for row and column.
template <class Cell>
std::string gpu_matrix(const Machine& machine, const char* title, const Cell& cell) {
  Rows rows = {{""}};
  for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
    rows[0].push_back(gpu_name(i));
    rows.push_back({gpu_name(i)});
    for (std::size_t j = 0; j < machine.gpus.size(); ++j) rows.back().push_back(i == j ? "X" : cell(i, j));
  }
  return fmt::format("\n{}\n{}", title, text_table(rows));
}

std::string pair_text(const Machine& machine, const std::optional<GpuPair>& pair, bool all_equal) {
  if (!pair) return "unknown";
  const auto [a, b] = *pair;
  return fmt::format("{},{} ({}{})", a, b, machine.links[a][b],
                     all_equal && machine.gpus.size() > 2 ? ", as all pairs are" : "");
}

std::string summary_text(const Machine& machine) {
  Rows rows;
  if (machine.gpus.size() > 1) {
    const ComparedPairs pairs = compare_pairs(machine);
    rows.push_back({"Nearest pair", pair_text(machine, pairs.nearest, pairs.all_equal)});
    rows.push_back({"Farthest pair", pair_text(machine, pairs.farthest, pairs.all_equal)});
  }
  const auto nics = nics_of_gpus(machine);
  for (std::size_t i = 0; machine.nics.size() > 1 && i < nics.size(); ++i) {
    if (nics[i].empty()) continue;
    rows.push_back({"Network card", fmt::format("{} through {}", gpu_name(i), fmt::join(nics[i], ", "))});
  }
  for (const SharedNics& shared : shared_nics(machine)) {
    rows.push_back({"Shared NIC", fmt::format("GPUs {} share {}: to other hosts, each has 1/{} of its rate",
                                              fmt::join(shared.gpus, ", "), fmt::join(shared.nics, ", "),
                                              shared.gpus.size() / shared.nics.size())});
  }
  return rows.empty() ? "" : fmt::format("\n{}", text_table(rows));
}

}  // namespace

std::string machine_text(const Machine& machine) {
  std::string text = fmt::format("Host {}\n\n", machine.hostname) + processors_text(machine);
  if (!machine.links.empty()) text += matrix_text(machine);
  if (!machine.gpus.empty()) text += gpus_text(machine);
  if (!machine.nics.empty()) text += nics_text(machine);
  if (machine.gpus.size() > 1) {
    text += gpu_matrix(machine, "Theoretical GB/s, one direction",
                       [&](std::size_t i, std::size_t j) { return gigabytes(machine.gb_per_s[i][j]); });
    text += gpu_matrix(machine, "P2P: the row's GPU reaches the column's memory", [&](std::size_t i, std::size_t j) {
      const auto& access = machine.p2p[i][j];
      return std::string(access ? (*access ? "yes" : "no") : "unknown");
    });
  }
  return text + summary_text(machine);
}

// For nlohmann::json, which finds them by the type.

static void to_json(json& to, const PcieLink& pcie) {
  to = {{"generation", pcie.generation}, {"width", pcie.width}, {"gb_per_s", pcie.gb_per_s()}};
}

static void to_json(json& to, const NumaNode& node) {
  to = {{"index", node.index}, {"socket", node.socket}, {"cpus", node.cpus}};
}

static void to_json(json& to, const GpuInfo& gpu) {
  to = {{"name", gpu.name},
        {"pci", gpu.pci},
        {"pci_path", gpu.pci_path},
        {"numa_node", gpu.numa_node},
        {"cpu_affinity", gpu.cpu_affinity},
        {"pcie", gpu.pcie},
        {"nvlinks", gpu.nvlinks},
        {"nvlinks_to_switch", gpu.nvlinks_to_switch},
        {"nvlink_gb_per_s", gpu.nvlink_gb_per_s}};
}

static void to_json(json& to, const NicInfo& nic) {
  to = {{"name", nic.name}, {"pci", nic.pci},   {"pci_path", nic.pci_path},    {"numa_node", nic.numa_node},
        {"pcie", nic.pcie}, {"kind", nic.kind}, {"speed_gbit", nic.speed_gbit}};
}

static void to_json(json& to, const SharedNics& shared) { to = {{"nics", shared.nics}, {"gpus", shared.gpus}}; }

json machine_json(const Machine& machine) {
  const ComparedPairs pairs = compare_pairs(machine);
  json host = {{"hostname", machine.hostname},
               {"cpu", {{"model", machine.cpu_model}, {"logical", machine.cpus}, {"sockets", machine.sockets}}},
               {"numa_nodes", machine.numa_nodes},
               {"gpus", machine.gpus},
               {"nics", machine.nics},
               {"links", machine.links},
               {"gb_per_s", machine.gb_per_s},
               {"p2p", machine.p2p},
               {"nearest_pair", pairs.nearest},
               {"farthest_pair", pairs.farthest},
               {"all_pairs_equal", pairs.all_equal},
               {"nics_of_gpus", nics_of_gpus(machine)},
               {"shared_nics", shared_nics(machine)}};
  for (std::size_t i = 0; i < machine.gpus.size(); ++i) host["gpus"][i]["index"] = i;
  return host;
}

}  // namespace ddptrain
