#include "runtime/topology/links.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

namespace ddptrain {

namespace {

template <std::size_t N>
std::optional<double> entry_of(const std::array<double, N>& rates, int generation) {
  if (generation < 1 || generation > static_cast<int>(N)) return std::nullopt;
  return rates[static_cast<std::size_t>(generation - 1)];
}

}  // namespace

int distance_of(const std::string& label) {
  constexpr std::array kLabels = {"PIX", "PXB", "PHB", "NODE", "SYS"};
  if (label.rfind("NV", 0) == 0) return -std::stoi(label.substr(2));
  const auto found = std::ranges::find(kLabels, label);
  return found == kLabels.end() ? std::numeric_limits<int>::max() : static_cast<int>(found - kLabels.begin());
}

std::string slowest_link(const std::vector<std::string>& labels) {
  if (labels.empty()) return "unknown";
  return *std::max_element(labels.begin(), labels.end(),
                           [](const auto& a, const auto& b) { return distance_of(a) < distance_of(b); });
}

std::optional<double> pcie_gb_per_s(int generation, int width) {
  constexpr std::array<double, 7> kOf16Lanes = {4.0, 8.0, 15.75, 31.0, 63.0, 121.0, 242.0};
  const auto rate = entry_of(kOf16Lanes, generation);
  return rate && width > 0 ? std::optional(*rate * width / 16.0) : std::nullopt;
}

std::optional<double> nvlink_gb_per_s(int generation) {
  constexpr std::array<double, 5> kOfOneLink = {20.0, 25.0, 25.0, 25.0, 50.0};
  return entry_of(kOfOneLink, generation);
}

}  // namespace ddptrain
