#pragma once

#include "models/gpt/gpt.h"
#include "models/gpt/shape.h"
#include "runtime/train/model.h"

namespace ddptrain {

/// The FLOP of a GPT for one window, and the points of the backward pass at which gradients are complete.
ModelWork gpt_work(const GptShape& shape, Recompute recompute);

/// Model::sends() of one of the `parts` ranks that share this stage; stage.end is set. The gradient of a bias that goes
/// to the stage before is not counted.
std::vector<Sent> gpt_sends(const GptShape& shape, const GptStage& stage, std::int64_t parts, Recompute recompute,
                            std::int64_t batch, std::int64_t passes, Precision precision);

}  // namespace ddptrain
