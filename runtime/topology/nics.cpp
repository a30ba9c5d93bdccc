#include <algorithm>
#include <array>
#include <regex>
#include <string>
#include <system_error>

#include "runtime/topology/machine.h"
#include "runtime/topology/sysfs.h"

namespace ddptrain {

namespace {

namespace fs = std::filesystem;

/// The PCI function to which a device of a class belongs, directly or through virtio; empty: none.
std::string pci_function_of(const fs::path& device) {
  static const std::regex kBusId("[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\\.[0-9a-f]");
  std::error_code error;
  const fs::path target = fs::canonical(device / "device", error);
  if (error) return {};
  std::string function;
  for (const auto& part : target) {
    if (std::regex_match(part.string(), kBusId)) function = part.string();
  }
  return function;
}

/// "100 Gb/sec (4X EDR)"
std::optional<double> rdma_speed(const fs::path& device) {
  std::optional<double> fastest;
  for (const auto& port : sorted_entries(device / "ports")) {
    const auto rate = value_in<double>(port / "rate");
    if (rate.value_or(0.0) > fastest.value_or(0.0)) fastest = rate;
  }
  return fastest;
}

std::string rdma_kind(const fs::path& device) {
  for (const auto& port : sorted_entries(device / "ports")) {
    if (first_line(port / "link_layer") == "Ethernet") return "roce";
  }
  return "infiniband";
}

std::optional<double> ethernet_speed(const fs::path& device) {
  const double megabits = value_in<double>(device / "speed").value_or(-1.0);  // or -1 in the file
  return megabits > 0.0 ? std::optional(megabits / 1000.0) : std::nullopt;
}

/// "32.0 GT/s PCIe" and "16"; other words, or no files, if the device does not report them.
std::optional<PcieLink> pcie_link(const std::string& function, const fs::path& sysfs) {
  constexpr std::array<double, 7> kGigatransfers = {2.5, 5.0, 8.0, 16.0, 32.0, 64.0, 128.0};  // by generation
  constexpr int kMostLanes = 32;
  const fs::path device = sysfs / "bus/pci/devices" / function;
  const auto speed = value_in<double>(device / "current_link_speed");
  const int width = value_in<int>(device / "current_link_width").value_or(0);
  const auto found = std::find(kGigatransfers.begin(), kGigatransfers.end(), speed);
  if (found == kGigatransfers.end() || width < 1 || width > kMostLanes) return std::nullopt;
  return PcieLink{static_cast<int>(found - kGigatransfers.begin()) + 1, width};
}

}  // namespace

std::vector<NicInfo> find_nics(const fs::path& sysfs) {
  std::vector<NicInfo> nics;
  for (const bool rdma : {true, false}) {
    for (const auto& device : sorted_entries(sysfs / "class" / (rdma ? "infiniband" : "net"))) {
      const std::string function = pci_function_of(device);
      const bool listed = !rdma && std::ranges::find(nics, function, &NicInfo::pci) != nics.end();
      if (function.empty() || listed) continue;
      NicInfo& info = nics.emplace_back();
      info.name = device.filename().string();
      info.pci = function;
      info.pci_path = pci_path(function, sysfs);
      info.kind = rdma ? rdma_kind(device) : "ethernet";
      info.numa_node = numa_node_of(function, sysfs);
      info.pcie = pcie_link(function, sysfs);
      info.speed_gbit = rdma ? rdma_speed(device) : ethernet_speed(device);
    }
  }
  return nics;
}

}  // namespace ddptrain
