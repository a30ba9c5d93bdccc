#include "runtime/topology/nvml.h"

#include <array>

#include "runtime/topology/pci.h"

namespace ddptrain {

namespace {

// The part of NVML's stable binary interface that is used here.
constexpr int kSuccess = NvmlLibrary::kSuccess;
constexpr unsigned kMostLinks = 18;
constexpr int kLinkActive = 1;
constexpr int kRemoteIsGpu = 0;
constexpr int kRemoteIsSwitch = 2;
constexpr int kRemoteUnknown = 255;

}  // namespace

struct Nvml::Calls {
  struct PciInfo {
    char legacy_bus_id[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
  };

  int (*handle_by_bus_id)(const char*, Device*);
  int (*link_state)(Device, unsigned, int*);
  int (*remote_type)(Device, unsigned, int*);
  int (*remote_pci)(Device, unsigned, PciInfo*);
  int (*ancestor)(Device, Device, int*);
  int (*count)(unsigned*);
  int (*handle_by_index)(unsigned, Device*);
  int (*pci_info)(Device, PciInfo*);
  int (*name)(Device, char*, unsigned);
  int (*pcie_generation)(Device, unsigned*);
  int (*pcie_width)(Device, unsigned*);
  int (*nvlink_version)(Device, unsigned, unsigned*);

  bool load(const NvmlLibrary& library) {
    return library.find("nvmlDeviceGetHandleByPciBusId_v2", handle_by_bus_id) &&
           library.find("nvmlDeviceGetNvLinkState", link_state) &&
           library.find("nvmlDeviceGetNvLinkRemoteDeviceType", remote_type) &&
           library.find("nvmlDeviceGetNvLinkRemotePciInfo_v2", remote_pci) &&
           library.find("nvmlDeviceGetTopologyCommonAncestor", ancestor) &&
           library.find("nvmlDeviceGetCount_v2", count) &&
           library.find("nvmlDeviceGetHandleByIndex_v2", handle_by_index) &&
           library.find("nvmlDeviceGetPciInfo_v3", pci_info) && library.find("nvmlDeviceGetName", name) &&
           library.find("nvmlDeviceGetMaxPcieLinkGeneration", pcie_generation) &&
           library.find("nvmlDeviceGetMaxPcieLinkWidth", pcie_width) &&
           library.find("nvmlDeviceGetNvLinkVersion", nvlink_version);
  }
};

Nvml::Nvml(std::unique_ptr<NvmlLibrary> library, std::unique_ptr<Calls> calls)
    : library_(std::move(library)), calls_(std::move(calls)) {}

Nvml::~Nvml() = default;

std::unique_ptr<Nvml> Nvml::open() {
  std::unique_ptr<NvmlLibrary> library = NvmlLibrary::open();
  auto calls = std::make_unique<Calls>();
  if (library == nullptr || !calls->load(*library)) return nullptr;
  return std::unique_ptr<Nvml>(new Nvml(std::move(library), std::move(calls)));
}

Nvml::Device Nvml::device(const std::string& pci_bus_id) const {
  Device device = nullptr;
  return calls_->handle_by_bus_id(pci_bus_id.c_str(), &device) == kSuccess ? device : nullptr;
}

std::vector<std::string> Nvml::pci_bus_ids() const {
  std::vector<std::string> ids;
  unsigned count = 0;
  if (calls_->count(&count) != kSuccess) return ids;
  for (unsigned i = 0; i < count; ++i) {
    Device device = nullptr;
    Calls::PciInfo info{};
    if (calls_->handle_by_index(i, &device) != kSuccess || calls_->pci_info(device, &info) != kSuccess) continue;
    ids.push_back(normalized_pci_bus_id(info.bus_id));
  }
  return ids;
}

std::string Nvml::name(Device device) const {
  std::array<char, 96> text{};
  return calls_->name(device, text.data(), text.size()) == kSuccess ? text.data() : "unknown";
}

std::optional<Nvml::PcieLink> Nvml::pcie_link(Device device) const {
  unsigned generation = 0;
  unsigned width = 0;
  if (calls_->pcie_generation(device, &generation) != kSuccess) return std::nullopt;
  if (calls_->pcie_width(device, &width) != kSuccess || generation == 0 || width == 0) return std::nullopt;
  return PcieLink{static_cast<int>(generation), static_cast<int>(width)};
}

int Nvml::nvlink_generation(Device device) const {
  // nvmlNvlinkVersion_t: 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0
  constexpr std::array<int, 8> kGenerations = {0, 1, 2, 2, 3, 3, 4, 5};
  for (unsigned link = 0; link < kMostLinks; ++link) {
    int state = 0;
    unsigned version = 0;
    if (calls_->link_state(device, link, &state) != kSuccess || state != kLinkActive) continue;
    if (calls_->nvlink_version(device, link, &version) != kSuccess || version >= kGenerations.size()) return 0;
    return kGenerations[version];
  }
  return 0;
}

Nvml::Links Nvml::links(Device device) const {
  Links links;
  for (unsigned link = 0; link < kMostLinks; ++link) {
    int state = 0;
    if (calls_->link_state(device, link, &state) != kSuccess || state != kLinkActive) continue;
    int type = kRemoteUnknown;
    if (calls_->remote_type(device, link, &type) != kSuccess) type = kRemoteUnknown;
    Calls::PciInfo remote{};
    const bool has_remote = calls_->remote_pci(device, link, &remote) == kSuccess;
    if (type == kRemoteIsSwitch) {
      ++links.to_switches;
    } else if (has_remote && (type == kRemoteIsGpu || type == kRemoteUnknown)) {
      links.peers.push_back(normalized_pci_bus_id(remote.bus_id));
    }
  }
  return links;
}

std::optional<PcieAncestor> Nvml::common_ancestor(Device a, Device b) const {
  int level = 0;
  if (calls_->ancestor(a, b, &level) != kSuccess) return std::nullopt;
  return static_cast<PcieAncestor>(level);
}

}  // namespace ddptrain
