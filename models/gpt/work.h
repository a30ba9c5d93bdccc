#pragma once

#include "models/gpt/gpt.h"
#include "models/gpt/shape.h"
#include "runtime/train/model.h"

namespace ddptrain {

/// What a GPT multiplies for one window, and when its backward pass completes which gradients.
ModelWork gpt_work(const GptShape& shape, Recompute recompute);

/// Bytes of an element of activations, and of the gradient of the tied embedding.
struct GptElementBytes {
  std::size_t activation, tied_gradient;
};

/// See Model::sends(): of one of `parts` ranks with this stage, whose blocks are counted from its first to the one
/// behind its last. Without the gradient of a bias that goes to the stage before.
std::vector<Sent> gpt_sends(const GptShape& shape, const GptStage& stage, std::int64_t parts, Recompute recompute,
                            std::int64_t batch, std::int64_t passes, const GptElementBytes& bytes);

}  // namespace ddptrain
