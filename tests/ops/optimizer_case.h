#pragma once

#include <ostream>
#include <vector>

#include "runtime/core/bf16.h"
#include "tests/ops/bench.h"

namespace ddptrain::tests {

/// A device, and the types of weights and gradients that its optimizer gets.
struct OptimizerCase {
  DeviceCase device;
  DType weights;
  DType gradients;
};

inline void PrintTo(const OptimizerCase& test_case, std::ostream* out) { *out << test_case.device.name; }

/// With bf16 beside f32 master weights on the CPU too, where no model uses it: as the readable twin.
inline std::vector<OptimizerCase> optimizer_cases() {
  std::vector<OptimizerCase> cases;
  for (const DeviceCase& device : device_cases()) {
    const DType type = compute_dtype(device.precision);
    cases.push_back({device, type, type});
  }
  const auto add = [&](const char* name, DeviceKind kind, Precision precision, DType weights, DType gradients) {
    cases.push_back({{name, kind, precision, weights == DType::bf16 ? 1.5e-2 : 1e-6}, weights, gradients});
  };
  add("cpu_fp64", DeviceKind::cpu, Precision::fp64, DType::f64, DType::f64);
  add("cpu_bf16", DeviceKind::cpu, Precision::fp32, DType::bf16, DType::bf16);
  add("cpu_bf16_f32_gradients", DeviceKind::cpu, Precision::fp32, DType::bf16, DType::f32);
  add("cuda_bf16_f32_gradients", DeviceKind::cuda, Precision::bf16, DType::bf16, DType::f32);
  return cases;
}

inline double rounded_to(DType dtype, double value) {
  if (dtype == DType::f64) return value;
  return dtype == DType::bf16 ? to_float(to_bf16(static_cast<float>(value))) : static_cast<float>(value);
}

}  // namespace ddptrain::tests
