#pragma once

#include <optional>
#include <string>

namespace ddptrain::bench {

/// How the links of a GPU run at one moment, and its highest clock. What NVML does not report is missing.
struct GpuLinks {
  std::optional<double> pcie_generation = {};      ///< An idle link runs slower.
  std::optional<double> pcie_generation_max = {};  ///< That GPU and slot allow.
  std::optional<double> pcie_width = {};           ///< Lanes.
  std::optional<double> pcie_width_max = {};
  std::optional<double> pcie_replays = {};   ///< Packets sent again, since the driver started.
  std::optional<double> nvlinks = {};        ///< Active.
  std::optional<double> nvlink_errors = {};  ///< Replays, recoveries and CRC errors of all, since the driver started.
  std::optional<double> sm_mhz_max = {};
};

/// Links of the GPU with this PCI bus id, by NVML. Nothing on the CPU (no bus id) and if NVML does not know the GPU.
std::optional<GpuLinks> gpu_links(const std::string& pci_bus_id);

}  // namespace ddptrain::bench
