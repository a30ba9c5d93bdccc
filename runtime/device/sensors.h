#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/core/process/repeated.h"

namespace ddptrain {

/// The reasons for a GPU's clock being below its maximum, in the order of NVML's bits. The names are nvidia-smi's.
inline constexpr std::array<std::string_view, 9> kThrottleReasons = {"gpu_idle",
                                                                     "applications_clocks_setting",
                                                                     "sw_power_cap",
                                                                     "hw_slowdown",
                                                                     "sync_boost",
                                                                     "sw_thermal_slowdown",
                                                                     "hw_thermal_slowdown",
                                                                     "hw_power_brake_slowdown",
                                                                     "display_clock_setting"};

/// Readings of a GPU's sensors at one moment. Sensors that the GPU does not report are missing.
struct SensorReading {
  std::optional<double> sm_mhz = {};
  std::optional<double> memory_mhz = {};
  std::optional<double> watts = {};  ///< Ampere and newer: mean over the last second.
  std::optional<double> celsius = {};
  std::optional<double> memory_used_bytes = {};  ///< By all processes.
  std::uint64_t throttle_reasons = 0;            ///< Bit i: kThrottleReasons[i].
};

/// Reads a GPU's sensors within milliseconds. One thread at a time calls it.
using ReadSensors = std::function<SensorReading()>;

/// Sensors of the GPU with this PCI bus id, by NVML. Null on the CPU (no bus id) and if NVML does not know the GPU.
ReadSensors gpu_sensors(const std::string& pci_bus_id);

/// Readings of a GPU's sensors over an interval of time. Trivially copyable, so that ranks can exchange it.
struct SensorWindow {
  struct Spread {
    std::uint64_t readings = 0;
    double sum = 0.0;
    double min = std::numeric_limits<double>::infinity();
    double max = -std::numeric_limits<double>::infinity();

    void add(const Spread& other);
    double mean() const { return sum / static_cast<double>(readings); }
  };

  std::uint64_t readings = 0;  ///< 0: nothing is known.
  Spread sm_mhz;
  Spread memory_mhz;
  Spread watts;
  Spread celsius;
  Spread memory_used_bytes;
  std::array<std::uint64_t, kThrottleReasons.size()> throttled{};  ///< Number of readings with each reason.

  void add(const SensorReading& reading);
  void add(const SensorWindow& other);  ///< Joins both intervals.
};

/// Reads sensors every `interval` in its own thread. Users of the GPU do not wait for it.
class SensorSampler {
 public:
  explicit SensorSampler(ReadSensors read, std::chrono::milliseconds interval = std::chrono::milliseconds(100));
  SensorSampler(const SensorSampler&) = delete;
  SensorSampler& operator=(const SensorSampler&) = delete;

  /// Readings since the last call. None if the last call was less than an interval ago.
  SensorWindow take();

 private:
  void sample();

  const ReadSensors read_;
  std::mutex mutex_;
  SensorWindow window_;
  Repeated samples_;
};

}  // namespace ddptrain
