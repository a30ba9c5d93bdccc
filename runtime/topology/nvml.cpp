#include "runtime/topology/nvml.h"

#include <dlfcn.h>

#include "runtime/topology/pci.h"

namespace ddptrain {

namespace {

// The part of NVML's stable binary interface that is used here.
constexpr int kSuccess = 0;
constexpr unsigned kMostLinks = 18;
constexpr int kLinkActive = 1;
constexpr int kRemoteIsGpu = 0;
constexpr int kRemoteIsSwitch = 2;
constexpr int kRemoteUnknown = 255;

struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

template <class Function>
bool find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

struct Nvml::Calls {
  int (*init)();
  int (*shutdown)();
  int (*handle_by_bus_id)(const char*, Device*);
  int (*link_state)(Device, unsigned, int*);
  int (*remote_type)(Device, unsigned, int*);
  int (*remote_pci)(Device, unsigned, PciInfo*);
  int (*ancestor)(Device, Device, int*);

  bool load(void* library) {
    return find(library, "nvmlInit_v2", init) && find(library, "nvmlShutdown", shutdown) &&
           find(library, "nvmlDeviceGetHandleByPciBusId_v2", handle_by_bus_id) &&
           find(library, "nvmlDeviceGetNvLinkState", link_state) &&
           find(library, "nvmlDeviceGetNvLinkRemoteDeviceType", remote_type) &&
           find(library, "nvmlDeviceGetNvLinkRemotePciInfo_v2", remote_pci) &&
           find(library, "nvmlDeviceGetTopologyCommonAncestor", ancestor);
  }
};

Nvml::Nvml(void* library, std::unique_ptr<Calls> calls) : library_(library), calls_(std::move(calls)) {}

Nvml::~Nvml() {
  calls_->shutdown();
  dlclose(library_);
}

std::unique_ptr<Nvml> Nvml::open() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  auto calls = std::make_unique<Calls>();
  if (!calls->load(library) || calls->init() != kSuccess) {
    dlclose(library);
    return nullptr;
  }
  return std::unique_ptr<Nvml>(new Nvml(library, std::move(calls)));
}

Nvml::Device Nvml::device(const std::string& pci_bus_id) const {
  Device device = nullptr;
  return calls_->handle_by_bus_id(pci_bus_id.c_str(), &device) == kSuccess ? device : nullptr;
}

Nvml::Links Nvml::links(Device device) const {
  Links links;
  for (unsigned link = 0; link < kMostLinks; ++link) {
    int state = 0;
    if (calls_->link_state(device, link, &state) != kSuccess || state != kLinkActive) continue;
    int type = kRemoteUnknown;
    if (calls_->remote_type(device, link, &type) != kSuccess) type = kRemoteUnknown;
    PciInfo remote{};
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
