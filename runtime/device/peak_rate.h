#pragma once

#include <string>

#include "runtime/core/tensor.h"

namespace ddptrain {

/// Highest rate of a device, for the model FLOP utilisation (MFU).
struct PeakRate {
  double flops = 0.0;  ///< Dense matrix products with f32 sums, FLOP/s; 0: unknown.
  std::string source;  ///< Such as "H200 SXM, bf16, H200 data sheet"; empty where unknown.
};

/// Peak of the GPU that the driver calls `name`, from the data sheet or white paper of exactly this product; unknown
/// for all others.
PeakRate data_sheet_peak(const std::string& name, Precision precision, bool fp8);

}  // namespace ddptrain
