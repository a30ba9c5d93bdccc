#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/nvml_library.h"
#include "runtime/topology/gpu_links.h"

namespace ddptrain {

/// What NVIDIA's management library tells of GPUs and the links between them.
class Nvml {
 public:
  using Device = struct nvmlDevice_st*;

  struct Links {
    std::vector<std::string> peers;  ///< Normalized bus id of the GPU at the other end, one for each active link.
    int to_switches = 0;             ///< Active links to an NVSwitch.
  };

  struct PcieLink {
    int generation = 0;
    int width = 0;
  };

  static std::unique_ptr<Nvml> open();  ///< Null: there is no driver.
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  Device device(const std::string& pci_bus_id) const;  ///< Null: NVML knows no such GPU.
  std::vector<std::string> pci_bus_ids() const;        ///< Normalized, of all GPUs of the machine, in NVML's order.
  std::string name(Device device) const;               ///< "unknown": NVML does not report it.
  Links links(Device device) const;
  /// The fastest rate that GPU and slot allow; an idle link runs slower. nullopt: NVML does not report it.
  std::optional<PcieLink> pcie_link(Device device) const;
  int nvlink_generation(Device device) const;  ///< Of the active links; 0: NVML does not report it.
  std::optional<PcieAncestor> common_ancestor(Device a, Device b) const;

 private:
  struct Calls;
  Nvml(std::unique_ptr<NvmlLibrary> library, std::unique_ptr<Calls> calls);

  std::unique_ptr<NvmlLibrary> library_;
  std::unique_ptr<Calls> calls_;
};

}  // namespace ddptrain
