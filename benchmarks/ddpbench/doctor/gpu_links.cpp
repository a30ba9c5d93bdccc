#include "benchmarks/ddpbench/doctor/gpu_links.h"

#include "runtime/core/process/nvml_library.h"

namespace ddptrain::bench {
namespace {

constexpr int kSmClock = 1;
constexpr unsigned kMostNvLinks = 18;
constexpr unsigned kNvLinkActive = 1;
constexpr unsigned kNvLinkErrorKinds = 4;  // replays, recoveries, CRC of flits, CRC of data

void add_nvlink(const NvmlGpu& gpu, unsigned link, GpuLinks& links) {
  const auto state = gpu.get<unsigned>("nvmlDeviceGetNvLinkState", link);
  if (!state) return;
  links.nvlinks = links.nvlinks.value_or(0.0) + (*state == kNvLinkActive ? 1.0 : 0.0);
  if (*state != kNvLinkActive) return;
  for (unsigned kind = 0; kind < kNvLinkErrorKinds; ++kind) {
    const auto errors = gpu.get<unsigned long long>("nvmlDeviceGetNvLinkErrorCounter", link, kind);
    if (errors) links.nvlink_errors = links.nvlink_errors.value_or(0.0) + static_cast<double>(*errors);
  }
}

}  // namespace

std::optional<GpuLinks> gpu_links(const std::string& pci_bus_id) {
  const auto gpu = pci_bus_id.empty() ? std::nullopt : NvmlGpu::open(pci_bus_id);
  if (!gpu) return std::nullopt;
  GpuLinks links;
  links.pcie_generation = gpu->get<unsigned>("nvmlDeviceGetCurrPcieLinkGeneration");
  links.pcie_generation_max = gpu->get<unsigned>("nvmlDeviceGetMaxPcieLinkGeneration");
  links.pcie_width = gpu->get<unsigned>("nvmlDeviceGetCurrPcieLinkWidth");
  links.pcie_width_max = gpu->get<unsigned>("nvmlDeviceGetMaxPcieLinkWidth");
  links.pcie_replays = gpu->get<unsigned>("nvmlDeviceGetPcieReplayCounter");
  links.sm_mhz_max = gpu->get<unsigned>("nvmlDeviceGetMaxClockInfo", kSmClock);
  for (unsigned link = 0; link < kMostNvLinks; ++link) add_nvlink(*gpu, link, links);
  return links;
}

}  // namespace ddptrain::bench
