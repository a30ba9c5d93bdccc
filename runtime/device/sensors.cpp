#include "runtime/device/sensors.h"

#include <algorithm>
#include <utility>

#include "runtime/core/process/nvml_library.h"

namespace ddptrain {
namespace {

/// The part of NVML's stable binary interface that this file uses.
class NvmlSensors {
 public:
  static std::shared_ptr<NvmlSensors> open(const std::string& pci_bus_id) {
    auto sensors = std::make_shared<NvmlSensors>();
    sensors->library_ = NvmlLibrary::open();
    int (*handle_by_bus_id)(const char*, Gpu*) = nullptr;
    if (sensors->library_ == nullptr ||
        !sensors->library_->find("nvmlDeviceGetHandleByPciBusId_v2", handle_by_bus_id) ||
        handle_by_bus_id(pci_bus_id.c_str(), &sensors->gpu_) != NvmlLibrary::kSuccess) {
      return nullptr;
    }
    const NvmlLibrary& library = *sensors->library_;
    library.find("nvmlDeviceGetClockInfo", sensors->clock_);
    library.find("nvmlDeviceGetPowerUsage", sensors->power_);
    library.find("nvmlDeviceGetTemperature", sensors->temperature_);
    library.find("nvmlDeviceGetMemoryInfo", sensors->memory_);
    library.find("nvmlDeviceGetCurrentClocksThrottleReasons", sensors->reasons_);
    library.find("nvmlDeviceGetMaxClockInfo", sensors->max_clock_);
    library.find("nvmlDeviceGetCurrPcieLinkGeneration", sensors->pcie_generation_);
    library.find("nvmlDeviceGetMaxPcieLinkGeneration", sensors->pcie_generation_max_);
    library.find("nvmlDeviceGetCurrPcieLinkWidth", sensors->pcie_width_);
    library.find("nvmlDeviceGetMaxPcieLinkWidth", sensors->pcie_width_max_);
    library.find("nvmlDeviceGetPcieReplayCounter", sensors->pcie_replays_);
    library.find("nvmlDeviceGetNvLinkState", sensors->nvlink_state_);
    library.find("nvmlDeviceGetNvLinkErrorCounter", sensors->nvlink_errors_);
    return sensors;
  }

  SensorReading read() const {
    SensorReading reading;
    reading.sm_mhz = number(clock_, kSmClock);
    reading.memory_mhz = number(clock_, kMemoryClock);
    if (const auto milliwatts = number(power_)) reading.watts = 1e-3 * *milliwatts;
    reading.celsius = number(temperature_, kGpuTemperature);
    Memory memory{};
    if (memory_ != nullptr && memory_(gpu_, &memory) == NvmlLibrary::kSuccess) {
      reading.memory_used_bytes = static_cast<double>(memory.used);
    }
    unsigned long long reasons = 0;
    if (reasons_ != nullptr && reasons_(gpu_, &reasons) == NvmlLibrary::kSuccess) reading.throttle_reasons = reasons;
    return reading;
  }

  GpuLinks links() const {
    GpuLinks links;
    links.pcie_generation = number(pcie_generation_);
    links.pcie_generation_max = number(pcie_generation_max_);
    links.pcie_width = number(pcie_width_);
    links.pcie_width_max = number(pcie_width_max_);
    links.pcie_replays = number(pcie_replays_);
    links.sm_mhz_max = number(max_clock_, kSmClock);
    for (unsigned link = 0; link < kMostNvLinks; ++link) {
      unsigned active = 0;
      if (nvlink_state_ == nullptr || nvlink_state_(gpu_, link, &active) != NvmlLibrary::kSuccess) continue;
      links.nvlinks = links.nvlinks.value_or(0.0) + (active == kNvLinkActive ? 1.0 : 0.0);
      if (active == kNvLinkActive) add_errors(links, link);
    }
    return links;
  }

 private:
  using Gpu = struct nvmlDevice_st*;
  static constexpr int kSmClock = 1;
  static constexpr int kMemoryClock = 2;
  static constexpr int kGpuTemperature = 0;
  static constexpr unsigned kMostNvLinks = 18;
  static constexpr unsigned kNvLinkActive = 1;
  static constexpr unsigned kNvLinkErrorKinds = 4;  // replays, recoveries, CRC of flits, CRC of data
  struct Memory {
    unsigned long long total, free, used;
  };

  void add_errors(GpuLinks& links, unsigned link) const {
    for (unsigned kind = 0; kind < kNvLinkErrorKinds; ++kind) {
      unsigned long long count = 0;
      if (nvlink_errors_ == nullptr || nvlink_errors_(gpu_, link, kind, &count) != NvmlLibrary::kSuccess) continue;
      links.nvlink_errors = links.nvlink_errors.value_or(0.0) + static_cast<double>(count);
    }
  }

  /// The value that `call` writes. Empty if the call fails.
  template <class... Arguments>
  std::optional<double> number(int (*call)(Gpu, Arguments...), auto... which) const {
    unsigned value = 0;
    if (call == nullptr || call(gpu_, which..., &value) != NvmlLibrary::kSuccess) return std::nullopt;
    return value;
  }

  std::unique_ptr<NvmlLibrary> library_;
  Gpu gpu_ = nullptr;
  int (*clock_)(Gpu, int, unsigned*) = nullptr;
  int (*power_)(Gpu, unsigned*) = nullptr;
  int (*temperature_)(Gpu, int, unsigned*) = nullptr;
  int (*memory_)(Gpu, Memory*) = nullptr;
  int (*reasons_)(Gpu, unsigned long long*) = nullptr;
  int (*max_clock_)(Gpu, int, unsigned*) = nullptr;
  int (*pcie_generation_)(Gpu, unsigned*) = nullptr;
  int (*pcie_generation_max_)(Gpu, unsigned*) = nullptr;
  int (*pcie_width_)(Gpu, unsigned*) = nullptr;
  int (*pcie_width_max_)(Gpu, unsigned*) = nullptr;
  int (*pcie_replays_)(Gpu, unsigned*) = nullptr;
  int (*nvlink_state_)(Gpu, unsigned, unsigned*) = nullptr;
  int (*nvlink_errors_)(Gpu, unsigned, unsigned, unsigned long long*) = nullptr;
};

void add(SensorWindow::Spread& spread, const std::optional<double>& value) {
  if (value) spread.add({1, *value, *value, *value});
}

}  // namespace

ReadSensors gpu_sensors(const std::string& pci_bus_id) {
  if (pci_bus_id.empty()) return nullptr;
  std::shared_ptr<NvmlSensors> sensors = NvmlSensors::open(pci_bus_id);
  if (sensors == nullptr) return nullptr;
  return [sensors = std::move(sensors)] { return sensors->read(); };
}

std::optional<GpuLinks> gpu_links(const std::string& pci_bus_id) {
  if (pci_bus_id.empty()) return std::nullopt;
  const std::shared_ptr<NvmlSensors> sensors = NvmlSensors::open(pci_bus_id);
  return sensors == nullptr ? std::nullopt : std::optional(sensors->links());
}

void SensorWindow::Spread::add(const Spread& other) {
  min = std::min(min, other.min);
  max = std::max(max, other.max);
  sum += other.sum;
  readings += other.readings;
}

void SensorWindow::add(const SensorReading& reading) {
  ++readings;
  ddptrain::add(sm_mhz, reading.sm_mhz);
  ddptrain::add(memory_mhz, reading.memory_mhz);
  ddptrain::add(watts, reading.watts);
  ddptrain::add(celsius, reading.celsius);
  ddptrain::add(memory_used_bytes, reading.memory_used_bytes);
  for (std::size_t i = 0; i < throttled.size(); ++i) throttled[i] += reading.throttle_reasons >> i & 1;
}

void SensorWindow::add(const SensorWindow& other) {
  readings += other.readings;
  sm_mhz.add(other.sm_mhz);
  memory_mhz.add(other.memory_mhz);
  watts.add(other.watts);
  celsius.add(other.celsius);
  memory_used_bytes.add(other.memory_used_bytes);
  for (std::size_t i = 0; i < throttled.size(); ++i) throttled[i] += other.throttled[i];
}

SensorSampler::SensorSampler(ReadSensors read, std::chrono::milliseconds interval)
    : read_(std::move(read)), samples_(interval, [this] { sample(); }) {}

SensorWindow SensorSampler::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(window_, {});
}

void SensorSampler::sample() {
  const SensorReading reading = read_();
  const std::lock_guard lock(mutex_);
  window_.add(reading);
}

}  // namespace ddptrain
