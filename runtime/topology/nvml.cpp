#include <algorithm>
#include <array>
#include <memory>

#include "runtime/core/process/nvml_library.h"
#include "runtime/topology/machine.h"
#include "runtime/topology/pci.h"

namespace ddptrain {

namespace {

// The part of NVML's stable binary interface that is used here.
using Device = struct nvmlDevice_st*;

struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

constexpr int kSuccess = NvmlLibrary::kSuccess;
constexpr unsigned kMostLinks = 18;
constexpr int kLinkActive = 1;
constexpr int kRemoteIsGpu = 0;
constexpr int kRemoteIsSwitch = 2;
constexpr int kRemoteUnknown = 255;

/// The active NVLinks of a GPU.
struct Links {
  std::vector<std::string> peers;  ///< Normalized bus id of the GPU at the other end, one for each link.
  int to_switches = 0;
};

/// GPUs and the links between them, from NVIDIA's management library.
class Nvml {
 public:
  static std::unique_ptr<Nvml> open() {  ///< Null: there is no driver.
    auto nvml = std::make_unique<Nvml>();
    nvml->library_ = NvmlLibrary::open();
    return nvml->library_ != nullptr && nvml->has_all_calls() ? std::move(nvml) : nullptr;
  }

  /// Null: NVML knows no such GPU.
  Device device(const std::string& pci_bus_id) const {
    Device device = nullptr;
    return handle_by_bus_id_(pci_bus_id.c_str(), &device) == kSuccess ? device : nullptr;
  }

  /// All GPUs of the machine, in NVML's order.
  std::vector<std::string> pci_bus_ids() const {
    std::vector<std::string> ids;
    unsigned count = 0;
    if (count_(&count) != kSuccess) return ids;
    for (unsigned i = 0; i < count; ++i) {
      Device device = nullptr;
      PciInfo info{};
      if (handle_by_index_(i, &device) == kSuccess && pci_info_(device, &info) == kSuccess) ids.push_back(info.bus_id);
    }
    return ids;
  }

  std::string name(Device device) const {
    std::array<char, 96> text{};
    return name_(device, text.data(), text.size()) == kSuccess ? text.data() : "unknown";
  }

  /// The fastest rate that GPU and slot allow.
  std::optional<PcieLink> pcie_link(Device device) const {
    unsigned generation = 0;
    unsigned width = 0;
    if (pcie_generation_(device, &generation) != kSuccess || pcie_width_(device, &width) != kSuccess) return {};
    if (generation == 0 || width == 0) return std::nullopt;
    return PcieLink{static_cast<int>(generation), static_cast<int>(width)};
  }

  Links links(Device device) const {
    Links links;
    for (unsigned link = 0; link < kMostLinks; ++link) {
      if (!is_active(device, link)) continue;
      int type = kRemoteUnknown;
      if (remote_type_(device, link, &type) != kSuccess) type = kRemoteUnknown;
      PciInfo remote{};
      const bool has_remote = remote_pci_(device, link, &remote) == kSuccess;
      if (type == kRemoteIsSwitch) {
        ++links.to_switches;
      } else if (has_remote && (type == kRemoteIsGpu || type == kRemoteUnknown)) {
        links.peers.push_back(normalized_pci_bus_id(remote.bus_id));
      }
    }
    return links;
  }

  /// Theoretical rate of a link in one direction, as NVIDIA publishes it. nullopt: there is none, or it is not known.
  std::optional<double> nvlink_gb_per_s(Device device) const {
    // nvmlNvlinkVersion_t: 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0
    constexpr std::array<double, 8> kRates = {0.0, 20.0, 25.0, 25.0, 25.0, 25.0, 25.0, 50.0};
    for (unsigned link = 0; link < kMostLinks; ++link) {
      if (!is_active(device, link)) continue;
      unsigned version = 0;
      const bool known = nvlink_version_(device, link, &version) == kSuccess && version > 0 && version < kRates.size();
      return known ? std::optional(kRates[version]) : std::nullopt;
    }
    return std::nullopt;
  }

 private:
  bool has_all_calls() {
    return library_->find("nvmlDeviceGetHandleByPciBusId_v2", handle_by_bus_id_) &&
           library_->find("nvmlDeviceGetNvLinkState", link_state_) &&
           library_->find("nvmlDeviceGetNvLinkRemoteDeviceType", remote_type_) &&
           library_->find("nvmlDeviceGetNvLinkRemotePciInfo_v2", remote_pci_) &&
           library_->find("nvmlDeviceGetCount_v2", count_) &&
           library_->find("nvmlDeviceGetHandleByIndex_v2", handle_by_index_) &&
           library_->find("nvmlDeviceGetPciInfo_v3", pci_info_) && library_->find("nvmlDeviceGetName", name_) &&
           library_->find("nvmlDeviceGetMaxPcieLinkGeneration", pcie_generation_) &&
           library_->find("nvmlDeviceGetMaxPcieLinkWidth", pcie_width_) &&
           library_->find("nvmlDeviceGetNvLinkVersion", nvlink_version_);
  }

  bool is_active(Device device, unsigned link) const {
    int state = 0;
    return link_state_(device, link, &state) == kSuccess && state == kLinkActive;
  }

  std::unique_ptr<NvmlLibrary> library_;
  int (*handle_by_bus_id_)(const char*, Device*);
  int (*link_state_)(Device, unsigned, int*);
  int (*remote_type_)(Device, unsigned, int*);
  int (*remote_pci_)(Device, unsigned, PciInfo*);
  int (*count_)(unsigned*);
  int (*handle_by_index_)(unsigned, Device*);
  int (*pci_info_)(Device, PciInfo*);
  int (*name_)(Device, char*, unsigned);
  int (*pcie_generation_)(Device, unsigned*);
  int (*pcie_width_)(Device, unsigned*);
  int (*nvlink_version_)(Device, unsigned, unsigned*);
};

int nvlinks_between(const Links& a, const std::string& id_a, const Links& b, const std::string& id_b) {
  const auto direct_a = std::count(a.peers.begin(), a.peers.end(), id_b);
  const auto direct_b = std::count(b.peers.begin(), b.peers.end(), id_a);
  const int direct = static_cast<int>(std::min(direct_a, direct_b));
  return direct > 0 ? direct : std::min(a.to_switches, b.to_switches);
}

}  // namespace

DriverFacts driver_facts(std::vector<std::string> pci_bus_ids) {
  const auto nvml = Nvml::open();
  if (nvml && pci_bus_ids.empty()) pci_bus_ids = nvml->pci_bus_ids();
  DriverFacts facts;
  std::vector<Device> devices;
  std::vector<Links> links;
  for (const std::string& id : pci_bus_ids) {
    GpuInfo& gpu = facts.gpus.emplace_back();
    gpu.pci = normalized_pci_bus_id(id);
    const Device device = nvml ? nvml->device(gpu.pci) : nullptr;
    if (device == nullptr) continue;
    devices.push_back(device);
    gpu.name = nvml->name(device);
    gpu.pcie = nvml->pcie_link(device);
    const Links& mine = links.emplace_back(nvml->links(device));
    gpu.nvlinks_to_switch = mine.to_switches;
    gpu.nvlinks = mine.to_switches + static_cast<int>(mine.peers.size());
    gpu.nvlink_gb_per_s = nvml->nvlink_gb_per_s(device);
  }
  if (devices.empty() || devices.size() < facts.gpus.size()) return facts;
  facts.nvlinks.emplace();
  for (std::size_t i = 0; i < devices.size(); ++i) {
    for (std::size_t j = i + 1; j < devices.size(); ++j) {
      facts.nvlinks->push_back(nvlinks_between(links[i], facts.gpus[i].pci, links[j], facts.gpus[j].pci));
    }
  }
  return facts;
}

}  // namespace ddptrain
