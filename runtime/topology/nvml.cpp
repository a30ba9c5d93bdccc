#include <algorithm>
#include <array>
#include <utility>

#include "runtime/core/process/nvml_library.h"
#include "runtime/topology/machine.h"
#include "runtime/topology/pci.h"

namespace ddptrain {

namespace {

// The part of NVML's stable binary interface that is used here.
struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned pci_device_id;
  unsigned pci_subsystem_id;
  char bus_id[32];
};

constexpr unsigned kMostLinks = 18;
constexpr unsigned kLinkActive = 1;
constexpr int kRemoteIsGpu = 0;
constexpr int kRemoteIsSwitch = 2;
constexpr int kRemoteUnknown = 255;

/// The active NVLinks of a GPU.
struct Links {
  std::vector<std::string> peers;  ///< Normalized bus id of the GPU at the other end, one for each link.
  int to_switches = 0;
  std::optional<double> gb_per_s;  ///< Of one link in one direction, as NVIDIA publishes it.
};

/// The bus ids of all GPUs of the machine, in NVML's order.
std::vector<std::string> all_gpus(const NvmlLibrary& library) {
  std::vector<std::string> ids;
  int (*count_gpus)(unsigned*) = nullptr;
  int (*handle_by_index)(unsigned, void**) = nullptr;
  int (*pci_info)(void*, PciInfo*) = nullptr;
  unsigned count = 0;
  if (!library.find("nvmlDeviceGetCount_v2", count_gpus) ||
      !library.find("nvmlDeviceGetHandleByIndex_v2", handle_by_index) ||
      !library.find("nvmlDeviceGetPciInfo_v3", pci_info) || count_gpus(&count) != NvmlLibrary::kSuccess) {
    return ids;
  }
  for (unsigned i = 0; i < count; ++i) {
    void* gpu = nullptr;
    PciInfo info{};
    if (handle_by_index(i, &gpu) == NvmlLibrary::kSuccess && pci_info(gpu, &info) == NvmlLibrary::kSuccess) {
      ids.push_back(info.bus_id);
    }
  }
  return ids;
}

/// The fastest rate that GPU and slot allow.
std::optional<PcieLink> pcie_link(const NvmlGpu& gpu) {
  const auto generation = gpu.get<unsigned>("nvmlDeviceGetMaxPcieLinkGeneration").value_or(0);
  const auto width = gpu.get<unsigned>("nvmlDeviceGetMaxPcieLinkWidth").value_or(0);
  if (generation == 0 || width == 0) return std::nullopt;
  return PcieLink{static_cast<int>(generation), static_cast<int>(width)};
}

std::optional<double> rate_of_link(const NvmlGpu& gpu, unsigned link) {
  // nvmlNvlinkVersion_t: 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0
  constexpr std::array<double, 8> kRates = {0.0, 20.0, 25.0, 25.0, 25.0, 25.0, 25.0, 50.0};
  const unsigned version = gpu.get<unsigned>("nvmlDeviceGetNvLinkVersion", link).value_or(0);
  return version > 0 && version < kRates.size() ? std::optional(kRates[version]) : std::nullopt;
}

Links links_of(const NvmlGpu& gpu) {
  Links links;
  bool first = true;
  for (unsigned link = 0; link < kMostLinks; ++link) {
    if (gpu.get<unsigned>("nvmlDeviceGetNvLinkState", link) != kLinkActive) continue;
    if (std::exchange(first, false)) links.gb_per_s = rate_of_link(gpu, link);
    const int type = gpu.get<int>("nvmlDeviceGetNvLinkRemoteDeviceType", link).value_or(kRemoteUnknown);
    const auto remote = gpu.get<PciInfo>("nvmlDeviceGetNvLinkRemotePciInfo_v2", link);
    if (type == kRemoteIsSwitch) {
      ++links.to_switches;
    } else if (remote && (type == kRemoteIsGpu || type == kRemoteUnknown)) {
      links.peers.push_back(normalized_pci_bus_id(remote->bus_id));
    }
  }
  return links;
}

int nvlinks_between(const Links& a, const std::string& id_a, const Links& b, const std::string& id_b) {
  const auto direct_a = std::count(a.peers.begin(), a.peers.end(), id_b);
  const auto direct_b = std::count(b.peers.begin(), b.peers.end(), id_a);
  const int direct = static_cast<int>(std::min(direct_a, direct_b));
  return direct > 0 ? direct : std::min(a.to_switches, b.to_switches);
}

}  // namespace

DriverFacts driver_facts(std::vector<std::string> pci_bus_ids) {
  const auto library = NvmlLibrary::open();  // NVML starts once, not for each GPU
  if (library && pci_bus_ids.empty()) pci_bus_ids = all_gpus(*library);
  DriverFacts facts;
  std::vector<Links> links;
  for (const std::string& id : pci_bus_ids) {
    GpuInfo& gpu = facts.gpus.emplace_back();
    gpu.pci = normalized_pci_bus_id(id);
    const auto nvml = NvmlGpu::open(gpu.pci);
    if (!nvml) continue;
    gpu.name = nvml->name();
    gpu.pcie = pcie_link(*nvml);
    const Links& mine = links.emplace_back(links_of(*nvml));
    gpu.nvlinks_to_switch = mine.to_switches;
    gpu.nvlinks = mine.to_switches + static_cast<int>(mine.peers.size());
    gpu.nvlink_gb_per_s = mine.gb_per_s;
  }
  if (links.empty() || links.size() < facts.gpus.size()) return facts;
  facts.nvlinks.emplace();
  for (std::size_t i = 0; i < links.size(); ++i) {
    for (std::size_t j = i + 1; j < links.size(); ++j) {
      facts.nvlinks->push_back(nvlinks_between(links[i], facts.gpus[i].pci, links[j], facts.gpus[j].pci));
    }
  }
  return facts;
}

}  // namespace ddptrain
