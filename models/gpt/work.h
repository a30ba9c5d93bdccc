#pragma once

#include "models/gpt/gpt.h"
#include "models/gpt/shape.h"
#include "runtime/train/model.h"

namespace ddptrain {

/// What a GPT multiplies for one window, and when its backward pass completes which gradients.
ModelWork gpt_work(const GptShape& shape, Recompute recompute);

}  // namespace ddptrain
