#pragma once

#include <string>
#include <vector>

#include "models/cnn/cnn_kernels.h"
#include "models/workload.h"

/// The CNN's parameters as the same layers of PyTorch have them (Conv2d, Linear on flattened images): there channels
/// come before rows and columns, in memory they come last. Names are the same: conv1, conv2, fc1, fc2 with .weight and
/// .bias.

namespace ddptrain {

/// conv1.weight [conv1, 1, 3, 3], conv2.weight [conv2, conv1, 3, 3], fc1.weight [hidden, features] with features in the
/// order [channel, height, width]; others stay as they are.
HostTensor to_pytorch(const CnnShape& shape, const std::string& name, HostTensor tensor);
/// The values in memory.
std::vector<float> from_pytorch(const CnnShape& shape, const std::string& name, std::vector<float> values);

}  // namespace ddptrain
