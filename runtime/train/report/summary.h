#pragma once

#include <string>

#include "runtime/train/report/report.h"

namespace ddptrain {

/// FLOP/s that the model needs, as MFU counts them, on each GPU or rank of a CPU.
double flops_per_device(const RunInfo& info, double samples_per_second);

/// What a run prints at its end. A line that has nothing to say is missing.
std::string summary_text(const RunInfo& info, const RunResult& result);

}  // namespace ddptrain
