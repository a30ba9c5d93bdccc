#pragma once

#include <functional>
#include <string>

#include "runtime/device/cuda/cuda_device.h"
#include "runtime/ops/output_layer.h"

namespace ddptrain {

/// time(operation, bytes, FLOP, work): times `work` and prints a row.
using TimeOperation = std::function<void(const std::string&, double, double, const std::function<void()>&)>;

/// Times the output layer with its loss and gradients: one operation after another, as `--tune` chooses, and each
/// kernel of its own if the GPU has them.
void time_output_layer(CudaDevice& device, const OutputRows& rows, const Tensor& d_x, MetricSums* sums,
                       const TimeOperation& time);

}  // namespace ddptrain
