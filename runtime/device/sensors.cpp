#include "runtime/device/sensors.h"

#include <algorithm>
#include <utility>

#include "runtime/core/process/nvml_library.h"

namespace ddptrain {
namespace {

constexpr int kSmClock = 1;
constexpr int kMemoryClock = 2;
constexpr int kGpuTemperature = 0;

struct Memory {
  unsigned long long total, free, used;
};

SensorReading read_sensors(const NvmlGpu& gpu) {
  SensorReading reading;
  reading.sm_mhz = gpu.get<unsigned>("nvmlDeviceGetClockInfo", kSmClock);
  reading.memory_mhz = gpu.get<unsigned>("nvmlDeviceGetClockInfo", kMemoryClock);
  if (const auto milliwatts = gpu.get<unsigned>("nvmlDeviceGetPowerUsage")) reading.watts = 1e-3 * *milliwatts;
  reading.celsius = gpu.get<unsigned>("nvmlDeviceGetTemperature", kGpuTemperature);
  if (const auto memory = gpu.get<Memory>("nvmlDeviceGetMemoryInfo")) {
    reading.memory_used_bytes = static_cast<double>(memory->used);
  }
  reading.throttle_reasons = gpu.get<unsigned long long>("nvmlDeviceGetCurrentClocksThrottleReasons").value_or(0);
  return reading;
}

void add(SensorWindow::Spread& spread, const std::optional<double>& value) {
  if (value) spread.add({1, *value, *value, *value});
}

}  // namespace

ReadSensors gpu_sensors(const std::string& pci_bus_id) {
  if (pci_bus_id.empty()) return nullptr;
  const std::optional<NvmlGpu> gpu = NvmlGpu::open(pci_bus_id);
  if (!gpu) return nullptr;
  return [gpu = *gpu] { return read_sensors(gpu); };
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
