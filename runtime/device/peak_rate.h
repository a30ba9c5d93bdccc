#pragma once

#include <string>

#include "runtime/core/tensor.h"

namespace ddptrain {

/// Peak rate of a device, for the model FLOP utilisation (MFU).
struct PeakRate {
  double flops = 0.0;  ///< FLOP/s of dense GEMMs that add in f32. 0: unknown.
  std::string source;  ///< Such as "H200 SXM, bf16, H200 data sheet". Empty if unknown.
};

/// The peak rate of the GPU that the driver calls `name`, from the data sheet or white paper of exactly this product.
/// Unknown for other products.
PeakRate data_sheet_peak(const std::string& name, Precision precision, bool fp8);

}  // namespace ddptrain
