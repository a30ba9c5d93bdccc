#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/topology/gpu_links.h"

namespace ddptrain {

/// The few calls of NVIDIA's management library that are needed here, found when the program runs: programs start on
/// machines without a driver too.
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

  static std::unique_ptr<Nvml> open();  ///< Null where there is no driver.
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  Device device(const std::string& pci_bus_id) const;  ///< Null where it knows none.
  std::vector<std::string> pci_bus_ids() const;        ///< Normalized, of all GPUs of the machine, in NVML's order.
  std::string name(Device device) const;               ///< "unknown" where it does not tell.
  Links links(Device device) const;
  /// The fastest that GPU and slot allow; at rest the link itself is slower. Nothing where it does not tell.
  std::optional<PcieLink> pcie_link(Device device) const;
  int nvlink_generation(Device device) const;  ///< Of the active links; 0 where it does not tell.
  std::optional<PcieAncestor> common_ancestor(Device a, Device b) const;

 private:
  struct Calls;
  Nvml(void* library, std::unique_ptr<Calls> calls);

  void* library_;
  std::unique_ptr<Calls> calls_;
};

}  // namespace ddptrain
