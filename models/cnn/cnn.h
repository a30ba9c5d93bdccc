#pragma once

#include <memory>

#include "models/cnn/cnn_kernels.h"
#include "models/model.h"

namespace ddptrain {

/// Classifier of grey images: conv 3x3 + ReLU, conv 3x3 + ReLU (both valid), max-pool 2x2, dropout 0.25, linear + ReLU,
/// dropout 0.5, linear, softmax cross-entropy. 1,199,882 parameters for the default shape. Fused kernels of the
/// device compute it where there are some, else the primitive operations.
/// Throws UsageError unless options.max_batch > 0.
std::unique_ptr<Model> make_cnn(Device& device, const ModelOptions& options, const CnnShape& shape = {});

}  // namespace ddptrain
