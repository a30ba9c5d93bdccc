#pragma once

#include <ostream>

#include "tests/ops/bench.h"

namespace ddptrain::tests {

/// A device, and the types of weights and gradients that its optimizer gets.
struct OptimizerCase {
  DeviceCase device;
  DType weights;
  DType gradients;
};

inline void PrintTo(const OptimizerCase& test_case, std::ostream* out) { *out << test_case.device.name; }

}  // namespace ddptrain::tests
