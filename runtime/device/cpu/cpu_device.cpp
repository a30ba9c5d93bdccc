#include "runtime/device/cpu/cpu_device.h"

#include <fstream>

#include "runtime/core/error.h"

namespace ddptrain {

namespace {

DeviceOptions checked(DeviceOptions options) {
  if (options.precision == Precision::tf32 || options.precision == Precision::bf16) {
    usage_error(
        "--precision {}: the CPU computes in fp32. Use --precision fp32, or --device cuda on a machine with a GPU.",
        name_of(options.precision));
  }
  if (options.threads < 1) usage_error("--threads {}: at least 1 is needed.", options.threads);
  return options;
}

}  // namespace

CpuDevice::CpuDevice(DeviceOptions options) : Device(options), pool_(options.threads) {}

std::string CpuDevice::name() const {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const auto colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

void CpuDevice::store_sums(const std::vector<double>& partial, const Tensor& sum, bool accumulate) {
  const std::int64_t columns = sum.size();
  with_scalar([&](auto scalar) {
    using T = decltype(scalar);
    T* out = sum.as<T>();
    for (std::int64_t column = 0; column < columns; ++column) {
      double total = accumulate ? static_cast<double>(out[column]) : 0.0;
      for (int thread = 0; thread < threads(); ++thread) {
        total += partial[static_cast<std::size_t>(thread * columns + column)];
      }
      out[column] = static_cast<T>(total);
    }
  });
}

std::unique_ptr<Device> make_cpu_device(DeviceOptions options) { return std::make_unique<CpuDevice>(checked(options)); }

}  // namespace ddptrain
