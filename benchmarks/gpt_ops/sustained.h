#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <utility>

#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/sensors.h"

namespace ddptrain {

/// Rates that the GPU sustains while it repeats an operation.
class Sustained {
 public:
  Sustained(CudaDevice& device, double seconds) : device_(device), seconds_(seconds) {
    char bus_id[32] = {};
    DDP_CUDA(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), 0));
    if (ReadSensors read = gpu_sensors(bus_id)) sensors_.emplace(std::move(read));
  }

  void print_header() const { std::printf(" %10s %8s %8s %10s", "us", "MHz", "W", "mJ"); }

  void print(const std::function<void()>& work) {
    repeat(work, 1.0);  // NVML's power is a mean over the last second
    if (sensors_) sensors_->take();
    const double each = repeat(work, seconds_);
    const SensorWindow seen = sensors_ ? sensors_->take() : SensorWindow{};
    std::printf(" %10.1f", each * 1e6);
    if (seen.watts.readings == 0 || seen.sm_mhz.readings == 0) return;
    std::printf(" %8.0f %8.0f %10.2f", seen.sm_mhz.mean(), seen.watts.mean(), each * seen.watts.mean() * 1e3);
  }

 private:
  /// Seconds of one run.
  double repeat(const std::function<void()>& work, double seconds) {
    constexpr int kRuns = 20;
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    double elapsed = 0.0;
    std::int64_t runs = 0;
    while (elapsed < seconds) {
      for (int i = 0; i < kRuns; ++i) work();
      device_.synchronize();
      runs += kRuns;
      elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    }
    return elapsed / static_cast<double>(runs);
  }

  CudaDevice& device_;
  double seconds_;
  std::optional<SensorSampler> sensors_;
};

}  // namespace ddptrain
