#pragma once

#include "models/gpt/gpt.h"
#include "models/gpt/shape.h"
#include "runtime/train/model.h"

namespace ddptrain {

/// What a GPT multiplies for one window, and when its backward pass completes which gradients.
ModelWork gpt_work(const GptShape& shape, Recompute recompute);

/// Bytes of an element of activations, and of the gradient of the tied embedding.
struct GptElementBytes {
  double activation, tied_gradient;
};

/// What one of `parts` ranks with this stage, whose blocks are counted from its first to the one behind its last, sends
/// to the others of its replica in a pass of `batch` windows.
ReplicaTraffic gpt_traffic(const GptShape& shape, const GptStage& stage, std::int64_t parts, Recompute recompute,
                           std::int64_t batch, const GptElementBytes& bytes);

}  // namespace ddptrain
